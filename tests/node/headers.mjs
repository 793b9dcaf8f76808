// Loaded before the conformance suite, which has no option for it: adds the headers that
// COUNTERSEAL_TEST_HEADERS holds, as JSON, to every request, whichever of its two clients sends it.
import { subscribe } from "node:diagnostics_channel";

const headers = Object.entries(JSON.parse(process.env.COUNTERSEAL_TEST_HEADERS ?? "{}"));

subscribe("undici:request:create", ({ request }) => {
  for (const [name, value] of headers) request.addHeader(name, value);
});
subscribe("http.client.request.created", ({ request }) => {
  for (const [name, value] of headers) request.setHeader(name, value);
});
