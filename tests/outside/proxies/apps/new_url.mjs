// A router as many write it by hand, for paths.py: it takes the path from `new URL()` and decodes it. The last argument is
// its port.
import http from "node:http";

function isLogin(target) {
  const { pathname } = new URL(target, "http://app.example");
  const path = decodeURIComponent(pathname);
  return ["/login", "/a/login", "/gpt:go"].includes(path) || path.startsWith("/under/");
}

const server = http.createServer((request, response) => {
  try {
    response.end(isLogin(request.url) ? "login" : "other");
  } catch {
    response.writeHead(400).end();
  }
});
server.listen(Number(process.argv.at(-1)), "127.0.0.1");
