// The page of a server: the app, fed by the address it came from, and kept in step with the link.

import { mount } from "./app.js";
import { Remote } from "./source.js";

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
mount(root, new Remote(new URL(".", location.href)), { link: true });
