// Where numbers come from. A view asks a Source and never knows which kind it is.

/**
 * A token: its text, the tokenizer's piece, where it stands in the text (code points), the index of
 * its word, and whether it is a special token.
 * @typedef {[text: string, raw: string, start: number, end: number, word: number, special: boolean]} Token
 *
 * A word: its text, where it stands, its tokens, and whether it is a special token.
 * @typedef {[text: string, start: number, end: number, tokens: number[], special: boolean]} Word
 *
 * One side of a map: the text and how it is cut. A sentence or document is [first token, one past its last].
 * @typedef {{text: string, tokens: Token[], words: Word[], sentences: [number, number][], documents: [number, number][]}} Axis
 *
 * @typedef {"tokens" | "words" | "sentences" | "documents"} Unit
 *
 * What a run is. `columns` is null where what is read is what reads; `decimals` is null where weights are exact.
 * @typedef {object} About
 * @property {string} model
 * @property {string} title
 * @property {string} text
 * @property {string[]} notes
 * @property {string | null} proof
 * @property {number[]} layers  what the model calls them
 * @property {number[]} heads
 * @property {boolean} square
 * @property {boolean} causal
 * @property {number | null} decimals
 * @property {number[]} windows  where each begins
 * @property {Unit[]} units  those that there are
 * @property {Axis} rows
 * @property {Axis | null} columns
 * @property {{read: boolean, steps: boolean, rollout: boolean}} can
 * @property {Partial<import("./state.js").State>} opening
 *
 * Columns left out of a picture; what is left of each row is made to sum to one.
 * @typedef {{special: boolean, sinks: boolean, columns: number[]}} Leave
 *
 * Which matrix is asked for. Heads are [layer, head], from 0.
 * @typedef {{heads: [number, number][], join: "mean" | "max", unit: Unit, leave: Leave}} Picture
 *
 * @typedef {{json: any, arrays: Float32Array[]}} Answer
 *
 * @typedef {{id: string, title: string, model: string, tokens: number}} RunLine
 *
 * @typedef {object} Source
 * @property {(run: string, question: string, args: object, signal?: AbortSignal) => Promise<Answer>} ask
 * @property {() => Promise<RunLine[]>} runs
 * @property {(text: string, model: string | null, signal?: AbortSignal) => Promise<string>} read  gives the new run's id
 */

/** An answer that says what was wrong with the question. */
export class Refused extends Error {}

/** Nobody answered: the server is gone, or the network. */
export class Gone extends Error {}

/** Whether an error only says that an answer is no longer wanted. @param {unknown} error */
export const isCancelled = (error) => error instanceof DOMException && error.name === "AbortError";

/**
 * The answer in its bytes: uint32 length, that much JSON, padding to a multiple of 4, float32 arrays.
 * The arrays share the bytes; nothing is copied.
 * @param {ArrayBuffer} bytes
 * @returns {Answer}
 */
export function decode(bytes) {
  const length = new DataView(bytes).getUint32(0, true);
  const json = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
  let at = 4 + Math.ceil(length / 4) * 4;
  const arrays = [];
  for (const shape of json.arrays ?? []) {
    const size = shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1);
    arrays.push(new Float32Array(bytes, at, size));
    at += 4 * size;
  }
  return { json, arrays };
}

/** A server of ours. @implements {Source} */
export class Remote {
  /** @param {URL | string} base  ends with a slash; the token is part of it */
  constructor(base) {
    this.base = new URL(base);
  }

  /**
   * @param {string} run
   * @param {string} question
   * @param {object} args
   * @param {AbortSignal} [signal]
   */
  async ask(run, question, args, signal) {
    const path = `ask/${encodeURIComponent(run)}/${encodeURIComponent(question)}`;
    return decode(await (await this.post(path, args, signal)).arrayBuffer());
  }

  /** @returns {Promise<RunLine[]>} */
  async runs() {
    return (await this.fetched("runs", { method: "GET" })).json();
  }

  /**
   * @param {string} text
   * @param {string | null} model
   * @param {AbortSignal} [signal]
   * @returns {Promise<string>}
   */
  async read(text, model, signal) {
    return (await (await this.post("read", { text, model }, signal)).json()).run;
  }

  /**
   * @param {string} path
   * @param {object} body
   * @param {AbortSignal} [signal]
   */
  post(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    return this.fetched(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  }

  /**
   * @param {string} path
   * @param {RequestInit} how
   */
  async fetched(path, how) {
    let response;
    try {
      response = await fetch(new URL(path, this.base), how);
    } catch (error) {
      if (isCancelled(error)) throw error;
      throw new Gone("The program that computes the numbers no longer answers. Start it again with clearhead view.");
    }
    if (response.ok) return response;
    const said = await response.json().catch(() => ({}));
    throw new Refused(said.error ?? `The server answered ${response.status}.`);
  }
}
