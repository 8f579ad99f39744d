// Numbers, times and sizes for people.

/** What is smaller is what rounding leaves of 0, as of the KL of a policy from itself. */
export const ROUNDING = 1e-10;

/** A measured number in few digits. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size < ROUNDING) return "0";
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en");
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return size >= 1000
    ? Math.round(value).toLocaleString("en")
    : value
        .toPrecision(4)
        .replace(/(\.\d*?)0+$/, "$1")
        .replace(/\.$/, "");
}

/** With a sign, in three digits: advantages and log-probs. */
export function signed(value) {
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${number(Math.abs(Number(value.toPrecision(3))))}`;
}

/** Bytes. */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; bytes >= 1000 && at < units.length - 1; at++) bytes /= 1000;
  return `${at && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)} ${units[at]}`;
}

/** Seconds as a span of time. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1e-3) return `${Math.max(0, Math.round(seconds * 1e6))} µs`;
  if (seconds < 1) return `${Math.round(seconds * 1e3)} ms`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** Seconds since 1970 as a date and time of this place. */
export function moment(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const date = new Date(seconds * 1000);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString()
    ? time
    : `${date.toLocaleDateString("sv")} ${time.slice(0, 5)}`;
}

/** A handle without its scheme and kind: policy/12. */
export function short(handle) {
  if (!handle) return "–";
  const parts = handle.replace("tinker://", "").split("/");
  const name = parts.at(-1);
  return `${parts[0]}/${/^\d+$/.test(name) ? Number(name) : name}`;
}
