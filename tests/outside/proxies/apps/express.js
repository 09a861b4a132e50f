// An application with three routes, and one for all paths below a prefix, for paths.py. The last argument is its port.
import express from "express";

const app = express();
app.get(["/login", "/a/login", "/gpt\\:go"], (_, response) => response.send("login"));
app.use("/under", (_, response) => response.send("login"));
app.listen(Number(process.argv.at(-1)), "127.0.0.1");
