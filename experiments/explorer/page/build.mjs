// Bundles src/ and Preact into built/page.js. With --check, fails if that file is not current.

import fs from "node:fs";
import * as esbuild from "esbuild";

const OUTPUT = "built/page.js";
const license = fs.readFileSync("node_modules/preact/LICENSE", "utf8");

const { outputFiles } = await esbuild.build({
  entryPoints: ["src/main.tsx"],
  bundle: true,
  write: false,
  minify: true,
  charset: "utf8",
  target: "es2022",
  format: "iife",
  globalName: "explorer",
  jsx: "automatic",
  jsxImportSource: "preact",
  banner: { js: `/*! This file contains Preact (https://preactjs.com).\n\n${license}*/` },
});
const [{ text }] = outputFiles;

if (!process.argv.includes("--check")) {
  fs.mkdirSync("built", { recursive: true });
  fs.writeFileSync(OUTPUT, text);
} else if (!fs.existsSync(OUTPUT) || fs.readFileSync(OUTPUT, "utf8") !== text) {
  console.error(`${OUTPUT} is not current; run npm --prefix experiments/explorer/page run build`);
  process.exit(1);
}
