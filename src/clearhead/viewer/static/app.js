// The frame around the views: which one is seen, of which run, and what is said to the reader.

import { Palette } from "./colour.js";
import { CompareView } from "./compare.js";
import { make } from "./dom.js";
import { ExportMenu } from "./export.js";
import { HeadsView } from "./heads.js";
import { MapView } from "./map.js";
import { isCancelled } from "./source.js";
import { StartView } from "./start.js";
import { INITIAL, Store, fromHash, toHash } from "./state.js";
import { StepsView } from "./steps.js";
import { TextView } from "./text.js";

/** @typedef {import("./source.js").Source} Source */
/** @typedef {import("./source.js").About} About */
/** @typedef {import("./state.js").State} State */
/** @typedef {import("./export.js").Numbers} Numbers */

/**
 * What fills the page below the header. `show` is called when the view comes up and after each change
 * of the state while it is up; `hide` when another takes its place.
 * @typedef {object} View
 * @property {(state: State) => void} show
 * @property {() => void} hide
 * @property {() => HTMLCanvasElement} [toCanvas]  what is seen, for PNG
 * @property {() => string} [toSvg]
 * @property {() => Numbers | Promise<Numbers>} [numbers]  behind what is seen, for CSV and JSON
 * @property {() => {rows: [number, number], columns: [number, number]} | null} [seen]  the part of the map, instead
 */

/** Each view's name, its word on the tab and its class, in the order of the tabs. @type {[State["view"], string, new (root: HTMLElement, app: App) => View][]} */
const VIEWS = [
  ["text", "Text", TextView],
  ["map", "Map", MapView],
  ["heads", "Heads", HeadsView],
  ["compare", "Compare", CompareView],
  ["steps", "Steps", StepsView],
  ["start", "New text", StartView],
];

const LINK_DELAY = 250; // ms of rest before the address follows: browsers refuse a hundred changes in a row

/**
 * Put the app into an element or a shadow root whose page has `app.css`; the function given back takes it out again.
 * @param {HTMLElement | ShadowRoot} root
 * @param {Source} source
 * @param {{opening?: Partial<State>, link?: boolean}} [how]  link: keep the page's address in step with what is seen
 */
export function mount(root, source, how = {}) {
  const app = new App(root, source, how);
  app.start();
  return () => app.end();
}

export class App {
  /**
   * @param {HTMLElement | ShadowRoot} root
   * @param {Source} source
   * @param {{opening?: Partial<State>, link?: boolean}} how
   */
  constructor(root, source, how) {
    this.source = source;
    this.how = how;
    this.store = new Store({ ...INITIAL, ...how.opening });
    /** @type {import("./source.js").RunLine[]} */
    this.runs = [];
    /** @type {Map<string, Promise<About>>} */
    this.abouts = new Map();
    /** @type {Map<State["view"], {view: View, root: HTMLElement}>} */
    this.views = new Map();
    /** @type {View | null} */
    this.current = null;
    this.ending = new AbortController();
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.palette = new Palette(this.scheme.matches);
    this.can = { read: true, steps: true };

    this.what = make("p", "what");
    this.tabs = make("div", "tabs", { role: "tablist", "aria-label": "Views" });
    this.menu = make("div", "menu");
    this.theme = make("button", "quiet theme", { type: "button" });
    this.notice = make("div", "notice", { role: "alert", hidden: true });
    this.live = make("div", "unseen", { role: "status", "aria-live": "polite" });
    this.main = make("main", "views");
    this.menu.append(new ExportMenu(this).root);
    const header = make("header", "top", {}, make("p", "mark", {}, "clearhead"), this.what, this.tabs, this.menu, this.theme);
    this.foot = make("footer", "fine foot");
    this.root = make("div", "clearhead", {}, header, this.notice, this.main, this.foot, this.live);
    root.append(this.root);
    this.dress();
  }

  get state() {
    return this.store.state;
  }

  /** @param {Partial<State>} change */
  set(change) {
    this.store.set(change);
  }

  /** What a run is, asked once. @param {string} [run] @returns {Promise<About>} */
  about(run = this.state.run) {
    let about = this.abouts.get(run);
    if (!about) {
      about = this.source.ask(run, "about", {}).then((answer) => answer.json);
      about.catch(() => this.abouts.delete(run));
      this.abouts.set(run, about);
    }
    return about;
  }

  /** Say something to who listens instead of looking. @param {string} text */
  announce(text) {
    if (this.live.textContent !== text) this.live.textContent = text;
  }

  /**
   * Show what went wrong until it is put away. Answers that nobody waits for any more are not wrong.
   * @param {unknown} error
   * @param {(() => void) | null} [again]  what "Try again" does
   */
  say(error, again = null) {
    if (isCancelled(error)) return;
    const close = make("button", "quiet", { type: "button", "aria-label": "Put this notice away" }, "×");
    close.addEventListener("click", () => this.unsay());
    const parts = [make("p", "", {}, error instanceof Error ? error.message : String(error))];
    const buttons = make("span", "buttons");
    if (again) {
      const retry = make("button", "chip", { type: "button" }, "Try again");
      retry.addEventListener("click", () => {
        this.unsay();
        again();
      });
      buttons.append(retry);
    }
    buttons.append(close);
    this.notice.replaceChildren(...parts, buttons);
    this.notice.hidden = false;
  }

  unsay() {
    this.notice.hidden = true;
    this.notice.replaceChildren();
  }

  async start() {
    const { signal } = this.ending;
    this.scheme.addEventListener("change", () => this.dress(), { signal });
    this.theme.addEventListener("click", () => this.set({ theme: this.palette.dark ? "light" : "dark" }));
    this.tabs.addEventListener("keydown", (event) => this.turn(event));
    try {
      this.runs = await this.source.runs();
      await this.begin();
    } catch (error) {
      this.say(error, () => void this.start());
      return;
    }
    this.store.subscribe((state, before) => this.changed(state, before));
    if (this.how.link) addEventListener("hashchange", () => this.follow(), { signal });
    this.changed(this.state, null);
    if (this.how.link) document.documentElement.dataset.ready = "yes";
  }

  /** The state that the link asks for, or the run's own opening. */
  async begin() {
    const hash = this.how.link ? location.hash.slice(1) : "";
    const { state, wrong } = fromHash(hash, { ...INITIAL, ...this.how.opening });
    if (wrong.length) this.say(`This link: ${wrong.join("; ")}.`);
    if (state.run && !this.runs.some((run) => run.id === state.run)) {
      this.say(`This link: run ${state.run} is not open here.`);
      state.run = "";
    }
    state.run ||= this.runs[0]?.id ?? "";
    const opening = state.run && !hash ? (await this.about(state.run)).opening : {};
    this.store.state = { ...state, ...opening, ...(state.run ? {} : { view: "start" }) };
  }

  end() {
    this.ending.abort();
    this.current?.hide();
    this.root.remove();
  }

  /** The address was changed by hand, or by going back. */
  follow() {
    const { state, wrong } = fromHash(location.hash, { ...INITIAL, run: this.state.run });
    if (wrong.length) this.say(`This link: ${wrong.join("; ")}.`);
    if (toHash(state) !== toHash(this.state)) this.set(state);
  }

  /**
   * @param {State} state
   * @param {State | null} before
   */
  changed(state, before) {
    if (state.theme !== before?.theme) this.dress();
    if (state.run !== before?.run) void this.title();
    if (state.view !== before?.view || state.run !== before?.run) this.open(state.view);
    this.current?.show(state);
    if (this.how.link) this.address(before !== null && (state.view !== before.view || state.run !== before.run));
  }

  /** @param {boolean} turned  the reader went elsewhere, and may want to come back */
  address(turned) {
    clearTimeout(this.late);
    const write = () => {
      const hash = `#${toHash(this.state)}`;
      if (hash === location.hash || (hash === "#" && location.hash === "")) return;
      if (turned) history.pushState(null, "", hash);
      else history.replaceState(null, "", hash);
    };
    if (turned) write();
    else this.late = setTimeout(write, LINK_DELAY);
  }

  /** @param {State["view"]} name */
  open(name) {
    const found = VIEWS.find(([view]) => view === name) ?? VIEWS[0];
    if (!found) return;
    const [view, , Made] = found;
    this.tab(view);
    let made = this.views.get(view);
    if (made && made.view === this.current) return;
    this.current?.hide();
    for (const other of this.views.values()) other.root.hidden = true;
    if (!made) {
      const root = make("section", `view ${view}`, { role: "tabpanel", "aria-label": found[1], tabindex: -1 });
      this.main.append(root);
      made = { root, view: new Made(root, this) };
      this.views.set(view, made);
    }
    made.root.hidden = false;
    this.current = made.view;
  }

  /** The views that there is something for: without a run only where one begins. */
  get shown() {
    if (!this.state.run) return VIEWS.filter(([view]) => view === "start");
    return VIEWS.filter(([view]) => (view !== "start" || this.can.read) && (view !== "steps" || this.can.steps));
  }

  /** @param {State["view"]} chosen */
  tab(chosen) {
    this.tabs.replaceChildren(
      ...this.shown.map(([view, word]) => {
        const at = view === chosen;
        const tab = make("button", "tab", { type: "button", role: "tab", "aria-selected": String(at), tabindex: at ? 0 : -1, "data-view": view }, word);
        tab.addEventListener("click", () => this.set({ view }));
        return tab;
      }),
    );
  }

  /** Arrow keys go from tab to tab. @param {KeyboardEvent} event */
  turn(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const views = this.shown;
    const at = views.findIndex(([view]) => view === this.state.view);
    this.set({ view: views[(at + step + views.length) % views.length][0] });
    /** @type {HTMLElement | null} */ (this.tabs.querySelector("[aria-selected=true]"))?.focus();
    event.preventDefault();
  }

  async title() {
    if (!this.state.run) return this.foot.replaceChildren();
    try {
      const about = await this.about();
      this.can = about.can;
      this.tab(this.state.view);
      this.foot.textContent = footOf(about);
      const cut = `${about.layers.length} layers × ${about.heads.length} heads`;
      const size = [about.rows, about.columns].flatMap((axis) => (axis ? [axis.tokens.length.toLocaleString("en")] : [])).join(" × ");
      this.what.textContent = `${about.model} · ${cut} · ${size} tokens`;
      this.what.title = [about.title, ...about.notes, about.proof ?? ""].filter(Boolean).join(" · ");
      if (this.how.link) document.title = `${about.title || about.model} · clearhead`;
    } catch (error) {
      this.say(error, () => this.changed(this.state, null));
    }
  }

  /** Light or dark, as the reader's system has it or as chosen. */
  dress() {
    const { theme } = this.state;
    const dark = theme === "auto" ? this.scheme.matches : theme === "dark";
    if (dark !== this.palette.dark) this.palette = new Palette(dark);
    this.root.dataset.theme = dark ? "dark" : "light";
    this.theme.textContent = dark ? "☀" : "☾";
    this.theme.setAttribute("aria-label", dark ? "Light page" : "Dark page");
    this.theme.title = dark ? "Light page" : "Dark page";
    this.current?.show(this.state);
  }
}

/**
 * What must be known of every number on the page.
 * @param {About} about
 */
export function footOf({ notes, proof, decimals }) {
  const off = decimals === null ? "" : `Weights on this page are rounded to ${decimals} decimals (off by at most ${(0.5 * 10 ** -decimals).toFixed(decimals + 1)}).`;
  const units = "A word of several tokens: what they read is averaged, what is read of them is added up.";
  return [...notes.map((note) => `The text was ${note}.`), proof && `${proof[0].toUpperCase()}${proof.slice(1)}.`, off, units].filter(Boolean).join(" ");
}
