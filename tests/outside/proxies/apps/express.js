// An application with two routes, for paths.py. The last argument is its port.
import express from "express";

const app = express();
app.get(["/login", "/a/login"], (_, response) => response.send("login"));
app.listen(Number(process.argv.at(-1)), "127.0.0.1");
