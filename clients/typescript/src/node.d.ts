// All that the package takes of Node: `tsconfig.json` leaves out Node's types, so that nothing else comes to depend on Node.
declare module "node:url" {
  export function parse(url: string): { pathname: string | null };
}
