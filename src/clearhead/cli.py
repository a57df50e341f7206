"""The command `clearhead`: arguments to calls, and errors to one sentence. No logic lives here.

Each subcommand imports the module that does its work when it runs, so that `--help` stays quick.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="clearhead",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


def _version(asked: bool) -> None:
    if asked:
        from . import __version__

        print(f"clearhead {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Attention you can see through, at the speed of the machine.

    clearhead map "The animal crossed the road because it was tired."
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("map")
def _map(
    given: Annotated[
        str,
        typer.Argument(metavar="TEXT|FILE|-", help="A text, a file, a saved run, or - for stdin."),
    ],
    layer: Annotated[int | None, typer.Option(metavar="N", help="Only this layer, from 0.")] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", help="Only this head of --layer.")
    ] = None,
    word: Annotated[
        str | None, typer.Option(metavar="WORD", help="What it reads and who reads it.")
    ] = None,
    special: Annotated[
        bool, typer.Option("--special", help="Rank [CLS] and the like too.")
    ] = False,
    include_self: Annotated[
        bool, typer.Option("--self", help="Rank what a word reads of itself too.")
    ] = False,
    raw_tokens: Annotated[
        bool, typer.Option("--raw-tokens", help="The tokenizer's pieces instead of words.")
    ] = False,
    top: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many links (12; 1000 in files).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="A checkpoint folder, or a name.")
    ] = None,
    window: Annotated[
        bool, typer.Option("--window", help="Read a long text in overlapping windows.")
    ] = False,
    cut: Annotated[bool, typer.Option("--cut", help="Cut a long text, and say so.")] = False,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a page to look at.")
    ] = None,
    png: Annotated[str | None, typer.Option(metavar="FILE", help="Write a picture.")] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write the links.")] = None,
    csv: Annotated[str | None, typer.Option(metavar="FILE", help="Write them as a table.")] = None,
    npz: Annotated[str | None, typer.Option(metavar="FILE", help="Write every weight.")] = None,
    save: Annotated[str | None, typer.Option(metavar="FILE", help="Save the run.")] = None,
    segments: Annotated[
        str | None,
        typer.Option(metavar="MARKER", help="What segments that begin so read of each other."),
    ] = None,
) -> None:
    """What a model's heads read in a text: the strongest links between words.

    clearhead map "The animal crossed the road because it was tired."

    clearhead map notes.txt --word it --html map.html

    clearhead map notes.txt --layer 5 --head 11 --png head.png
    """
    from rich.console import Console

    from . import map_command as command
    from .viewer import ranking

    asked = dict(html=html, png=png, json=json, csv=csv, npz=npz, save=save)
    files = {option: path for option, path in asked.items() if path is not None}
    command.check_files(files, given)
    run = command.read_run(given, model=model, window=window, cut=cut)
    if segments is not None:
        from . import heads_command

        return heads_command.segments(run, segments, files)
    heads = command.choose_heads(run, layer, head)
    if run.keys.tokens != run.tokens:
        ranked = dict(word=word, special=special, self=include_self, raw_tokens=raw_tokens, top=top)
        return command.write_two_texts(run, files, layer=layer, head=head, ranked=ranked)
    units = (ranking.pieces if raw_tokens else ranking.words)(run, special=special)
    only = command.find_words(units, word)
    page = command.page(
        run, units, heads, only=only, include_self=include_self, raw_tokens=raw_tokens, top=top
    )
    command.write_files(
        run,
        files,
        units,
        heads,
        only=only,
        special=special,
        include_self=include_self,
        raw_tokens=raw_tokens,
        top=top,
    )
    if "-" not in files.values():
        Console(highlight=False, soft_wrap=True).print(page, end="")


@app.command("view")
def _view(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT|FILE|RUN|-]...", help="Texts, files, saved runs, or - for stdin."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A checkpoint folder, or a name; several to compare."),
    ] = None,
    port: Annotated[int, typer.Option(metavar="N", help="0: any that is free.")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address only.")
    ] = False,
) -> None:
    """Look at attention in the browser: a map to zoom into, from this machine alone.

    clearhead view run.safetensors

    clearhead view "He sat by the bank." "He robbed the bank."

    clearhead view        a page with a box for a text
    """
    from .view_command import view

    view(given or [], models=model or [], port=port, browser=not no_browser)


@app.command("heads")
def _heads(
    given: Annotated[
        str,
        typer.Argument(metavar="RUN|TEXT|FILE|-", help="A saved run, a text, a file, or stdin."),
    ],
    sort: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Sort by it, largest first.")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N.")] = None,
    near: Annotated[int, typer.Option(min=1, metavar="N", help="The window of `near`.")] = 16,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="A checkpoint folder, or a name.")
    ] = None,
    window: Annotated[
        bool, typer.Option("--window", help="Read a long text in overlapping windows.")
    ] = False,
    cut: Annotated[bool, typer.Option("--cut", help="Cut a long text, and say so.")] = False,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write the table.")] = None,
    csv: Annotated[str | None, typer.Option(metavar="FILE", help="Write the table.")] = None,
    png: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a picture of --sort, heads x layers.")
    ] = None,
) -> None:
    """What each head does: how much it reads the previous token, the first, the same one earlier.

    clearhead heads run.safetensors --sort induction --top 10

    Columns: previous next self first special duplicate induction near distance entropy.
    """
    from . import heads_command, map_command

    asked = dict(json=json, csv=csv, png=png)
    files = {option: path for option, path in asked.items() if path is not None}
    heads_command.check(files, given, sort)
    run = map_command.read_run(given, model=model, window=window, cut=cut)
    heads_command.heads(run.heads(near=near), files, sort=sort, top=top)


@app.command("learn")
def _learn(
    file: Annotated[
        Path | None,
        typer.Argument(help="Lines of 'sense: sentence'; '?' first: held out. Default: duck."),
    ] = None,
    word: Annotated[str | None, typer.Option(help="The word all sentences share.")] = None,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 1,
    block: Annotated[bool, typer.Option("--block", help="A whole transformer block.")] = False,
    size: Annotated[int, typer.Option(help="Numbers per word.")] = 8,
    steps: Annotated[int, typer.Option(help="Steps of gradient descent.")] = 300,
    rate: Annotated[float, typer.Option(help="Length of a step, times the gradient.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Of the random start.")] = 0,
    vectors: Annotated[Path | None, typer.Option(help="A GloVe or word2vec file.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for the PNG and SVG.")] = None,
) -> None:
    """Train one attention layer to tell two meanings of a word apart.

    clearhead learn --heads 2 --figures pictures
    """
    from .worked.learn import learn
    from .worked.learn.text import read_sentences

    training, held_out = read_sentences(file) if file else (None, None)
    lesson = learn(
        training,
        held_out=held_out,
        word=word,
        heads=heads,
        block=block,
        size=size,
        steps=steps,
        rate=rate,
        seed=seed,
        vectors=vectors,
        progress=True,
    )
    print(lesson)
    for path in lesson.save_figures(figures) if figures else ():
        print(path)


@app.command("why")
def _why(
    name: Annotated[
        str | None, typer.Argument(help="scale, saturation, mask, heads or tiling; default: all.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for the PNG and SVG.")] = None,
) -> None:
    """Experiments that show why attention is built as it is.

    clearhead why scale
    """
    from .worked.why import run

    for evidence, written in run(name, figures):
        print(evidence, *written, sep="\n", end="\n\n")


@app.command("trace")
def _trace(
    file: Annotated[
        Path | None,
        typer.Argument(help='JSON: {"q": [[...]], "k": ..., "v": ...} or X, W_Q, W_K, W_V.'),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="A small built-in example.")] = False,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What a head does in it.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="For --text; default: the default model.")
    ] = None,
    layer: Annotated[int, typer.Option(help="For --text, from 0.")] = 0,
    head: Annotated[int, typer.Option(help="For --text, and for --cell.")] = 0,
    digits: Annotated[int, typer.Option(help="After the point.")] = 2,
    cell: Annotated[
        tuple[str, int, int] | None,
        typer.Option(metavar="STEP ROW COLUMN", help="One cell written out, counted from 0."),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    latex: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
) -> None:
    """Attention worked by hand: every step with its formula and its numbers.

    clearhead trace --demo --html trace.html

    clearhead trace --demo --cell scores 1 0
    """
    from .worked.trace import file as command

    made = command.chosen(file, demo, text, model=model, layer=layer, head=head, digits=digits)
    written = command.write(made, markdown, latex, html)
    if cell is not None:
        print(made.cell(*cell, head=0 if text else head))
    elif not written:
        print(made)
    for path in written:
        print(path, file=sys.stderr)


@app.command("cost")
def _cost(
    lengths: Annotated[list[int], typer.Argument(metavar="T...", help="Tokens of a text.")],
    heads: Annotated[int, typer.Option(help="Attention heads of a layer.")] = 1,
    layers: Annotated[int, typer.Option(help="Layers.")] = 1,
    head_size: Annotated[int, typer.Option(help="Numbers of a query, key or value.")] = 64,
    dtype: Annotated[str, typer.Option(help="float64, float32, float16, bfloat16.")] = "float32",
    window: Annotated[int | None, typer.Option(help="Also a causal window of N keys.")] = None,
    documents: Annotated[int | None, typer.Option(help="Also N documents packed into T.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The table as JSON.")] = False,
) -> None:
    """Count the cells, bytes and operations of attention over T tokens.

    clearhead cost 512 8192 131072 --heads 12 --layers 12 --window 1024
    """
    from .worked.cost import cost

    table = cost(
        lengths,
        heads=heads,
        layers=layers,
        head_size=head_size,
        dtype=dtype,
        window=window,
        documents=documents,
    )
    print(table.to_json() if json else table)


@app.command("bench")
def _bench(
    cases: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="NAME", help="Only these: a name, or a pattern with *."),
    ] = None,
    threads: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Default: one, and all.")
    ] = None,
    peers: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these, or none; default: all installed."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="For each contender of a case, at most about.")
    ] = 0.5,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write the numbers.")] = None,
    show_names: Annotated[bool, typer.Option("--list", help="The cases' names.")] = False,
) -> None:
    """Time attention here: against the machine's limit, and against who else is installed.

    clearhead bench

    clearhead bench --case causal/1x8x4096x128/bfloat16 --peers torch

    A case is MASK/BxHxTxD/DTYPE[/grad]; MASK is full, causal, window<W>, packed<N>, array, bias;
    H:G are query and key heads, T:S queries and keys, D:E sizes of a key and a value.
    """
    from .bench import command

    if show_names:
        print("\n".join(command.SHORT))
        return
    raise typer.Exit(
        command.bench(
            cases=cases or (),
            peers=peers or (),
            threads=threads or (),
            seconds=seconds,
            json=json,
        )
    )


@app.command("check")
def _check(
    file: Annotated[Path, typer.Argument(help="A Markdown article.")],
    fix: Annotated[
        bool, typer.Option("--fix", help="Write a corrected copy beside it, NAME.fixed.md.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Check the worked numbers of an article: every cell of every matrix, and every equation.

    Leaves with 1 when a number is wrong, with 2 when the file cannot be checked.

    clearhead check article.md --fix
    """
    from .worked.check import check_file

    report, copy = check_file(file, fix=fix)
    print(report.to_json() if json else report)
    if copy is not None:
        print(f"corrected copy: {copy}", file=sys.stderr)
    raise typer.Exit(report.exit_code)


models = typer.Typer(invoke_without_command=True)
app.add_typer(models, name="models")


@models.callback()
def _models(context: typer.Context) -> None:
    """List the models that have a name here, and where the fetched ones are.

    clearhead models
    """
    from .models import store

    if context.invoked_subcommand is None:
        for model in store.list_models():
            print(f"{model.name}  {model.about}, {model.licence}")
            size = f"not fetched, {model.download_bytes / 1e6:.0f} MB to download"
            print(f"    {model.folder or size}")


@models.command("fetch")
def _fetch(
    name: Annotated[str | None, typer.Argument(help="Default: the default model.")] = None,
) -> None:
    """Download a model now; afterwards it is read without a network.

    clearhead models fetch
    """
    from .models import store

    print(store.fetch(name or store.DEFAULT))


@models.command("remove")
def _remove(
    name: Annotated[str, typer.Argument(help="A name that clearhead models lists.")],
) -> None:
    """Delete a fetched model.

    clearhead models remove all-MiniLM-L6-v2
    """
    from .models import store

    print(f"{name} is removed" if store.remove(name) else f"{name} was not here")


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; bad input is one sentence on stderr and code 2.

    A reader that goes away (`| head`) ends the command quietly with 1; Ctrl-C ends it with 130.
    A TypeError or any other exception is a fault of ours and keeps its traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without Unicode gets \\u escapes, no crash
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(args=args, prog_name="clearhead", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go_of_stdout()
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except (ValueError, OSError, ImportError, MemoryError) as error:
        if isinstance(error, OSError):
            _let_go_of_stdout()  # it may be stdout itself that is full
        return _refuse(_sentence(error))
    except Exception as error:
        if not hasattr(
            error, "format_message"
        ):  # the parser's own errors, whichever class they are
            raise
        return _refuse(error.format_message())
    return code if isinstance(code, int) else 0


def _refuse(sentence: str) -> int:
    print(f"clearhead: {sentence}", file=sys.stderr)
    return 2


def _sentence(error: Exception) -> str:
    """The message of an error as one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'output'}: {error.strerror}"
    if isinstance(error, MemoryError):
        return " ".join(str(error).split()) or "memory: the machine has not enough for this"
    return " ".join(str(error).split())


def _let_go_of_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush cannot fail a second time."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # stdout is closed, or is not a file
        pass
