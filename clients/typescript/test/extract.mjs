// Writes the examples of README.md as modules that export their `app`, so that their types are checked and they run. A test
// listens by itself, on a free port.
// Usage: node extract.mjs README.md FOLDER
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [readme, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
for (const [, name, code] of readFileSync(readme, "utf8").matchAll(/^```js ?(\w*)\n(.*?)^```/gms)) {
  if (name === "") throw new Error(`an example has no name: ${code}`);
  const module = code.replace('"http://127.0.0.1:8080"', 'String(process.env["SPILLGATE_URL"])');
  if (module === code) throw new Error(`the example ${name} has another URL than http://127.0.0.1:8080`);
  const silent = module.replace(/^.*\b(listen|serve)\(.*\b8000\b.*\n/m, "");
  const isService = module.includes("const app = ");
  if (isService && silent === module) throw new Error(`the example ${name} does not listen on port 8000`);
  writeFileSync(join(folder, `${name}.mjs`), isService ? `${silent}\nexport { app };\n` : module);
}
