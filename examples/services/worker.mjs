// A service in JavaScript without any package: `node worker.mjs`. It registers, sends heartbeats, answers POST /exec/SERVICE,
// and shows the other way to end a job: `slow` accepts it at once and reports its end later, to the callback URL of the call.

import { createServer } from "node:http";

const registry = process.env.REGISTRY_URL ?? "http://localhost:8600";
const headers = { "Content-Type": "application/json" };
if (process.env.PERDURE_API_KEY) headers.Authorization = `Bearer ${process.env.PERDURE_API_KEY}`;
let load = 0;

const post = (url, body, with_ = headers) =>
  fetch(url, { method: "POST", headers: with_, body: JSON.stringify(body) });

const services = {
  reverse: (input) => [...input].reverse().join(""),
  slow: (input, params, request) => {
    const callback = request.headers["x-perdure-callback"];
    setTimeout(
      () => post(callback, { result: `done: ${input}`, error: "" }, { "Content-Type": "application/json" }),
      params.ms ?? 500,
    );
    return null; // no result yet
  },
};

const server = createServer(async (request, response) => {
  load += 1;
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  let answer;
  let status = 200;
  try {
    const { input, params } = JSON.parse(Buffer.concat(chunks));
    const result = services[request.url.slice("/exec/".length)](input, params, request);
    if (result === null) [status, answer] = [202, { accepted: true }];
    else answer = { result, error: "" };
  } catch (error) {
    answer = { result: null, error: String(error) };
  }
  load -= 1;
  response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(answer));
});

server.listen(Number(process.env.PORT ?? 0), "127.0.0.1", () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  let path = "/workers/register";
  const beat = async () => {
    try {
      const answer = await post(registry + path, { url, services: Object.keys(services), load });
      path = answer.ok ? "/workers/heartbeat" : "/workers/register";
    } catch {
      path = "/workers/register";
    }
    setTimeout(beat, 5000);
  };
  beat();
});
