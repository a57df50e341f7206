// The weights of a run, read from the page, and what they say between words.

/**
 * @typedef {object} RunData
 * @property {string} model
 * @property {[string, number | null][]} pieces  the text in order; the word each piece is, or null
 * @property {[string, string, number, boolean][]} tokens  text, raw piece, word, special
 * @property {[string, number[], boolean][]} words  text, tokens, special
 * @property {number} layers
 * @property {number} heads
 * @property {number} decimals  weights are rounded to this many
 * @property {{word: number | null, layer: number | null, head: number | null, special: boolean, self: boolean, raw: boolean}} opening
 * @property {string} weights  base64 of gzip of all low bytes, then all high bytes
 */

/** @typedef {{word: number, weight: number, layer: number, head: number}} Link */

/**
 * @param {string} base64
 * @returns {Promise<Uint8Array>}
 */
async function unpacked(base64) {
  const packed = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export class Weights {
  /**
   * @param {RunData} run
   * @param {Uint16Array} values  (layers, heads, tokens, tokens), in units of 10 ** -decimals
   */
  constructor(run, values) {
    this.run = run;
    this.values = values;
    this.count = run.tokens.length;
    this.unit = 10 ** -run.decimals;
  }

  /**
   * @param {RunData} run
   * @returns {Promise<Weights>}
   */
  static async read(run) {
    const bytes = await unpacked(run.weights);
    const count = bytes.length / 2;
    const values = new Uint16Array(count);
    for (let i = 0; i < count; i++) values[i] = bytes[i] | (bytes[count + i] << 8);
    return new Weights(run, values);
  }

  /**
   * Where the row of a token begins.
   * @param {number} layer
   * @param {number} head
   * @param {number} token
   */
  row(layer, head, token) {
    return ((layer * this.run.heads + head) * this.count + token) * this.count;
  }

  /**
   * One head between tokens, row by row.
   * @param {number} layer
   * @param {number} head
   * @returns {Float32Array}
   */
  tokens(layer, head) {
    const out = new Float32Array(this.count ** 2);
    const start = this.row(layer, head, 0);
    for (let i = 0; i < out.length; i++) out[i] = this.values[start + i] * this.unit;
    return out;
  }

  /**
   * What a word reads of every word in one head: keys summed, queries averaged. (In a text read in
   * windows a token may stand more than once; a word's own tokens are those that read for it.)
   * @param {number} layer
   * @param {number} head
   * @param {number} word
   * @returns {Float32Array}
   */
  reads(layer, head, word) {
    const { tokens, words } = this.run;
    const out = new Float32Array(words.length);
    const own = words[word][1];
    for (const token of own) {
      const start = this.row(layer, head, token);
      for (let key = 0; key < this.count; key++) {
        out[tokens[key][2]] += (this.values[start + key] * this.unit) / own.length;
      }
    }
    return out;
  }

  /**
   * What every word reads of one word in one head.
   * @param {number} layer
   * @param {number} head
   * @param {number} word
   * @returns {Float32Array}
   */
  readBy(layer, head, word) {
    const { tokens, words } = this.run;
    const out = new Float32Array(words.length);
    const keys = tokens.flatMap((token, at) => (token[2] === word ? [at] : []));
    words.forEach(([, own], reader) => {
      for (const token of own) {
        const start = this.row(layer, head, token);
        for (const key of keys) out[reader] += (this.values[start + key] * this.unit) / own.length;
      }
    });
    return out;
  }

  /**
   * One head between words, row by row.
   * @param {number} layer
   * @param {number} head
   * @returns {Float32Array}
   */
  words(layer, head) {
    const count = this.run.words.length;
    const out = new Float32Array(count ** 2);
    for (let word = 0; word < count; word++) out.set(this.reads(layer, head, word), word * count);
    return out;
  }

  /**
   * For each word its strongest link with `word`, over the heads given.
   * @param {number} word
   * @param {boolean} forward  true: what `word` reads; false: who reads it
   * @param {[number, number][]} heads
   * @returns {Link[]}  by word, in the order of the text
   */
  links(word, forward, heads) {
    /** @type {Link[]} */
    const best = this.run.words.map((_, at) => ({ word: at, weight: -1, layer: 0, head: 0 }));
    for (const [layer, head] of heads) {
      const weights = forward ? this.reads(layer, head, word) : this.readBy(layer, head, word);
      weights.forEach((weight, at) => {
        if (weight > best[at].weight) best[at] = { word: at, weight, layer, head };
      });
    }
    return best;
  }

  /** Every (layer, head). @returns {[number, number][]} */
  allHeads() {
    const { layers, heads } = this.run;
    return Array.from({ length: layers * heads }, (_, i) => [Math.floor(i / heads), i % heads]);
  }

  /** @param {number} weight */
  shown(weight) {
    return weight.toFixed(this.run.decimals);
  }
}
