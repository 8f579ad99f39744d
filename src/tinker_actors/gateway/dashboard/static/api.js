// Asking the gateway. The key lives in this tab's session storage and travels in a header, never in an address.

const ROOT = new URL("dashboard/api", document.baseURI).href; // the gateway may stand below a path of another service
const KEY = "tinker-actors-key";

/** What the gateway answered in place of what was asked for. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** The gateway doesn't answer. */
export class Lost extends Error {}

let ask = null; // the dialog that asks for a key, while it is open

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

export function forgetKey() {
  sessionStorage.removeItem(KEY);
}

/** Whose key this is; set by whoever draws the dialog. */
export const keyDialog = { open: null };

/** A new key from the person; several that need one wait for the same dialog. */
function newKey(why) {
  ask ??= keyDialog.open(why).then((key) => {
    sessionStorage.setItem(KEY, key);
    ask = null;
  });
  return ask;
}

/** An open response; asks for a key where one is needed, as often as it takes. */
export async function request(path, { method = "GET", signal, query = {} } = {}) {
  const address = new URL(ROOT + path);
  for (const [name, value] of Object.entries(query)) {
    for (const each of [value].flat())
      if (each !== null && each !== undefined && each !== "") address.searchParams.append(name, each);
  }
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    let response;
    try {
      response = await fetch(address, {
        method,
        signal,
        cache: "no-store",
        headers: key === null ? {} : { "X-API-Key": key },
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Lost("the gateway does not answer");
    }
    if (response.ok) return response;
    if (response.status !== 401) throw new Refused(response.status, await why(response));
    const detail = await why(response);
    if (sessionStorage.getItem(KEY) === key) await newKey(key === null ? "" : detail);
  }
}

async function why(response) {
  try {
    return (await response.json()).detail ?? response.statusText;
  } catch {
    return response.statusText || `status ${response.status}`;
  }
}

export const get = async (path, options) => (await request(path, options)).json();
export const post = async (path) => (await request(path, { method: "POST" })).json();
export const remove = async (path) => (await request(path, { method: "DELETE" })).json();
