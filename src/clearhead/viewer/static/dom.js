// Elements. Text always goes in as text.

/**
 * An element of a class, with attributes and children; a string child is text.
 * An attribute of true is there, one of false or null is not.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string} className
 * @param {Record<string, string | number | boolean | null>} [attributes]
 * @param {...(Node | string | null)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, className, attributes = {}, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A text kept apart from the direction of the sentence around it. @param {string} text */
export const bdi = (text) => make("bdi", "", {}, text);

/**
 * One of a few: buttons in a row, of which one is pressed.
 * @template {string} Choice
 */
export class Switch {
  /**
   * @param {string} label  what is chosen, for who cannot see the buttons together
   * @param {readonly (readonly [Choice, string, string?])[]} choices  value, word on the button, what it does
   * @param {(choice: Choice) => void} choose
   */
  constructor(label, choices, choose) {
    this.buttons = new Map(
      choices.map(([value, word, title]) => {
        const button = make("button", "", { type: "button", "aria-pressed": "false", title: title ?? null }, word);
        button.addEventListener("click", () => choose(value));
        return [value, button];
      }),
    );
    this.root = make("div", "switch", { role: "group", "aria-label": label }, ...this.buttons.values());
  }

  /** @param {Choice} chosen */
  update(chosen) {
    for (const [value, button] of this.buttons) button.setAttribute("aria-pressed", String(value === chosen));
  }
}
