import assert from "node:assert/strict";
import { createServer } from "node:http";
import test from "node:test";

import { Gone, Refused, Remote, decode, isCancelled } from "../../src/clearhead/viewer/static/source.js";

/** The bytes of an answer. */
function encoded(json, arrays) {
  const text = new TextEncoder().encode(JSON.stringify({ ...json, arrays: arrays.map(([shape]) => shape) }));
  const start = 4 + Math.ceil(text.length / 4) * 4;
  const numbers = arrays.flatMap(([, values]) => values);
  const bytes = new ArrayBuffer(start + 4 * numbers.length);
  new DataView(bytes).setUint32(0, text.length, true);
  new Uint8Array(bytes).set(text, 4);
  numbers.forEach((value, at) => new DataView(bytes).setFloat32(start + 4 * at, value, true));
  return bytes;
}

test("an answer is read back whatever the length of its JSON", () => {
  for (const title of ["", "a", "ab", "abc", "東京 🙂"]) {
    const { json, arrays } = decode(encoded({ title }, [[[2, 3], [1, 2, 3, 5, 7, NaN]], [[0, 7], []], [[1], [0.5]]]));
    assert.equal(json.title, title);
    assert.deepEqual(arrays.map((array) => [...array]), [[1, 2, 3, 5, 7, NaN], [], [0.5]]);
  }
});

/** Serve `answer`, ask, and stop serving. */
async function with_server(answer, use) {
  const server = createServer(answer);
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  try {
    await use(new Remote(`http://127.0.0.1:${server.address().port}/secret/`));
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

test("a question goes below the token, its arguments as JSON", async () => {
  let asked;
  const answer = (request, response) => {
    let body = "";
    request.on("data", (part) => (body += part));
    request.on("end", () => {
      asked = [request.method, request.url, JSON.parse(body)];
      response.end(new Uint8Array(encoded({ done: true }, [[[1, 2], [3, 5]]])));
    });
  };
  await with_server(answer, async (remote) => {
    const { json, arrays } = await remote.ask("a/b", "tile", { level: 3 });
    assert.deepEqual(asked, ["POST", "/secret/ask/a%2Fb/tile", { level: 3 }]);
    assert.equal(json.done, true);
    assert.deepEqual([...arrays[0]], [3, 5]);
  });
});

test("a refusal is the server's own sentence", async () => {
  const answer = (_, response) => {
    response.statusCode = 422;
    response.end(JSON.stringify({ error: "level: is 99, must be 0 to 10" }));
  };
  await with_server(answer, async (remote) => {
    await assert.rejects(remote.ask("a", "tile", {}), (error) => error instanceof Refused && error.message === "level: is 99, must be 0 to 10");
  });
});

test("a server that is gone is told from a question that is no longer wanted", async () => {
  const no = new AbortController();
  const answer = (request) => (request.url.endsWith("gone") ? request.socket.destroy() : no.abort());
  await with_server(answer, async (remote) => {
    await assert.rejects(remote.ask("a", "unwanted", {}, no.signal), (error) => isCancelled(error) && !(error instanceof Gone));
    await assert.rejects(remote.ask("a", "gone", {}), Gone);
  });
});
