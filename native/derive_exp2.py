"""Coefficients of 2^r on [-1/2, 1/2], smallest relative error with 2^0 = 1: see tile.inl.hpp.

    python native/derive_exp2.py

Remez exchange in 40 digits (mpmath) on 1 + c1 r + ... + cn r^n.
"""

from mpmath import cos, lu_solve, matrix, mp, mpf, nstr, pi

mp.dps = 40
STEPS = 4000


def error(c, r):
    return (1 + sum(x * r ** (k + 1) for k, x in enumerate(c))) / mpf(2) ** r - 1


def alternating(values):
    """Places of the largest values of each run of one sign."""
    places = []
    for i, value in enumerate(values):
        if places and (value > 0) == (values[places[-1]] > 0):
            if abs(value) > abs(values[places[-1]]):
                places[-1] = i
        elif value != 0:
            places.append(i)
    return places


def derive(degree):
    grid = [mpf(i) / STEPS - mpf(1) / 2 for i in range(STEPS + 1)]
    points = sorted(cos(pi * i / degree) / 2 for i in range(degree + 1))
    for _ in range(12):
        a, b = matrix(degree + 1), matrix(degree + 1, 1)
        for i, r in enumerate(points):
            for k in range(degree):
                a[i, k] = r ** (k + 1) / mpf(2) ** r
            a[i, degree] = (-1) ** i
            b[i] = 1 - mpf(2) ** -r
        c = list(lu_solve(a, b))[:degree]
        places = alternating([error(c, r) for r in grid])
        if len(places) < degree + 1:
            break
        while len(places) > degree + 1:
            ends = (abs(error(c, grid[places[0]])), abs(error(c, grid[places[-1]])))
            places.pop(0 if ends[0] < ends[1] else -1)
        points = [grid[i] for i in places]
    return c, max(abs(error(c, r)) for r in grid)


if __name__ == "__main__":
    for degree in (6, 11):
        c, worst = derive(degree)
        print(degree, nstr(worst, 3), [nstr(x, 20) for x in c])
