// Paths of files. A name is any bytes but `/` and zero: each is kept percent-encoded, as the API
// takes and gives the bytes of a path.

/// The encoded name of an entry.
export const encoded = (entry) => entry.name_bytes ?? encodeURIComponent(entry.name);

/// The encoded names of a path of the API.
export function namesOf(path, bytes) {
  const whole = bytes ?? path.split("/").map(encodeURIComponent).join("/");
  return whole.split("/").filter(Boolean);
}

/// A name for people: bytes that are not UTF-8 are `\xNN`.
export function readable(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name.replace(/%([0-9A-F]{2})/gi, (all, digits) => {
      const code = parseInt(digits, 16);
      return code < 128 ? String.fromCharCode(code) : `\\x${digits.toLowerCase()}`;
    });
  }
}

/// A path for people.
export const readablePath = (names) => `/${names.map(readable).join("/")}`;

/// The query of the API for a path at an instant.
export function placeQuery(at, names) {
  const query = new URLSearchParams({ path_bytes: names.join("/") });
  if (at) query.set("at", at);
  return query.toString();
}

/// The body of the API for a path at an instant.
export const placeBody = (at, names) => ({ at, path: "", path_bytes: names.join("/") });

/// The address of a folder in this page.
export function filesHref(volume, at, names = []) {
  const instant = encodeURIComponent(at ? `${volume}@${at}` : volume);
  return `#/files/${instant}${names.map((name) => `/${name}`).join("")}`;
}

/// A word as a shell takes it.
export const shell = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
