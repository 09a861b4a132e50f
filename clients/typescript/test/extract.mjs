// Writes the examples of README.md as modules that export their `app`, so that they are compiled and run. A test listens by
// itself, on a free port.
// Usage: node extract.mjs README.md FOLDER
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [readme, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
for (const [, name, code] of readFileSync(readme, "utf8").matchAll(/^```ts ?(\w*)\n(.*?)^```/gms)) {
  if (name === "") throw new Error(`an example has no name: ${code}`);
  const module = code.replace('"http://127.0.0.1:8080"', 'process.env["SPILLGATE_URL"] as string');
  if (module === code) throw new Error(`the example ${name} has another URL than http://127.0.0.1:8080`);
  const exported = code.includes("const app = ") ? "export { app };" : "";
  writeFileSync(join(folder, `${name}.ts`), `${module.replace("app.listen(8000);", "")}\n${exported}\n`);
}
