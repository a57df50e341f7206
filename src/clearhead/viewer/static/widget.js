// The app in a notebook: questions go to the kernel, and answers come back, as messages of a widget.

import { mount } from "./app.js";
import { Gone, Refused } from "./source.js";

/**
 * What anywidget gives of a widget's model.
 * @typedef {object} Model
 * @property {(name: string) => any} get
 * @property {(content: object) => void} send
 * @property {(event: string, listen: (content: any, buffers: DataView[]) => void) => void} on
 * @property {(event: string, listen: (content: any, buffers: DataView[]) => void) => void} off
 *
 * @typedef {import("./source.js").Answer} Answer
 * @typedef {import("./source.js").Source} Source
 */

/** A source that asks the kernel. @implements {Source} */
export class Kernel {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    this.own = Math.random().toString(36).slice(2); // two views of one widget hear the same messages
    this.count = 0;
    /** @type {Map<string, {take: (answer: Answer) => void, fail: (error: unknown) => void}>} */
    this.waiting = new Map();
    this.listen = (/** @type {any} */ content, /** @type {DataView[]} */ buffers) => this.hear(content, buffers ?? []);
    model.on("msg:custom", this.listen);
  }

  end() {
    this.model.off("msg:custom", this.listen);
    for (const { fail } of this.waiting.values()) fail(new Gone("This view was closed."));
    this.waiting.clear();
  }

  /**
   * @param {string} run
   * @param {string} question
   * @param {object} args
   * @param {AbortSignal} [signal]
   */
  ask(run, question, args, signal) {
    return this.say({ run, question, arguments: args }, signal);
  }

  async runs() {
    return (await this.say({ question: "runs" })).json.runs;
  }

  /** @param {string} text @param {string | null} model @param {AbortSignal} [signal] @returns {Promise<string>} */
  async read(text, model, signal) {
    return (await this.say({ question: "read", arguments: { text, model } }, signal)).json.run;
  }

  /** @param {object} content @param {AbortSignal} [signal] @returns {Promise<Answer>} */
  say(content, signal) {
    const id = `${this.own}-${++this.count}`;
    return new Promise((resolve, reject) => {
      const cancel = () => {
        this.waiting.delete(id);
        this.model.send({ cancel: id });
        reject(new DOMException("no longer wanted", "AbortError"));
      };
      if (signal?.aborted) return reject(new DOMException("no longer wanted", "AbortError"));
      signal?.addEventListener("abort", cancel, { once: true });
      const settled = () => signal?.removeEventListener("abort", cancel);
      this.waiting.set(id, {
        take: (answer) => (settled(), resolve(answer)),
        fail: (error) => (settled(), reject(error)),
      });
      this.model.send({ id, ...content });
    });
  }

  /** @param {{id?: string, json?: any, error?: string}} content @param {DataView[]} buffers */
  hear(content, buffers) {
    const asked = content.id === undefined ? undefined : this.waiting.get(content.id);
    if (!asked || content.id === undefined) return;
    this.waiting.delete(content.id);
    if (content.error !== undefined) return asked.fail(new Refused(content.error));
    // A copy of each: a buffer may begin where a float32 may not.
    const arrays = buffers.map((part) => new Float32Array(part.buffer.slice(part.byteOffset, part.byteOffset + part.byteLength)));
    asked.take({ json: content.json, arrays });
  }
}

/** @param {{model: Model, el: HTMLElement}} widget */
export function render({ model, el }) {
  const host = el.appendChild(document.createElement("div"));
  const shadow = host.attachShadow({ mode: "open" }); // the notebook's styles stay out, ours stay in
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(model.get("style"));
  shadow.adoptedStyleSheets = [sheet];
  const source = new Kernel(model);
  const unmount = mount(shadow, source, {});
  return () => {
    unmount();
    source.end();
  };
}
