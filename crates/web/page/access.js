// The access of this page: the role of its token, and the requests that it may not make. The server
// decides about each request all the same.

import { get } from "./api.js";

/// None before the first answer, and at a server that does not say it.
let own = null;

/// Request to the roles that permit it.
let forbidden = new Map();

/// Asks the server.
export async function learnAccess() {
  try {
    own = await get("/v1/access");
    forbidden = new Map(own.forbidden.map(({ request, needs }) => [request, needs]));
  } catch {
    own = null;
    forbidden = new Map();
  }
}

/// The name and the role of the client, for people.
export function accessWords() {
  if (!own) return "";
  const volumes = own.volumes ? `, ${own.volumes.join(", ")} only` : "";
  return `${own.name} (${own.role.replaceAll("-", " ")}${volumes})`;
}

/// Whether the client may make a request, such as `GET /v1/audit`.
export const may = (request) => !forbidden.has(request);

/// Why it may not; none, if it may.
export function whyNot(request) {
  const needs = request && forbidden.get(request);
  return needs ? `This needs ${needs}. You are ${accessWords()}.` : null;
}
