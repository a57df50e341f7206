// Unpacks the app, which stands in the page as gzip, and runs it: its hash is in the page's policy.

const app = /** @type {HTMLElement} */ (document.getElementById("app"));
try {
  const packed = Uint8Array.from(atob(document.getElementById("code")?.textContent ?? ""), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.type = "module";
  script.textContent = await new Response(stream).text();
  document.body.append(script);
} catch (error) {
  const old = typeof DecompressionStream === "undefined";
  app.textContent = old ? "This browser is too old for this page: it needs one from 2023 or later." : `This page could not be drawn: ${error}`;
}

export {};
