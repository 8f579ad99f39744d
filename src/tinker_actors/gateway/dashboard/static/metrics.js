// What runs measured, in columns: one pair of arrays for each metric of a run.

const TIME = "at_update_end"; // seconds since training began

/** The metrics of the runs that are looked at. */
export class Metrics {
  constructor() {
    this.runs = new Map();
    this.listeners = new Set();
  }

  run(job) {
    if (!this.runs.has(job)) this.runs.set(job, fresh());
    return this.runs.get(job);
  }

  /** Take what an event or an answer brought: `{records, cursor, reset, every}`. */
  take(job, reading) {
    if (!reading) return;
    if (reading.reset) this.runs.set(job, fresh());
    const run = this.run(job);
    run.cursor = reading.cursor;
    if (reading.reset) run.every = reading.every;
    for (const record of reading.records) add(run, record);
    for (const listener of this.listeners) listener(job);
  }

  /** Names of all metrics of some runs. */
  names(jobs) {
    const found = new Set();
    for (const job of jobs) for (const name of this.runs.get(job)?.steps.keys() ?? []) found.add(name);
    return [...found].sort();
  }

  /** A column of steps or evaluations: `{x, y, time}`, or null. */
  column(job, name, evaluations = false) {
    const run = this.runs.get(job);
    return (evaluations ? run?.evaluations : run?.steps)?.get(name) ?? null;
  }
}

function fresh() {
  return { steps: new Map(), evaluations: new Map(), cursor: "", every: 1, time: 0 };
}

function add(run, record) {
  const evaluation = record.kind === "evaluation";
  const columns = evaluation ? run.evaluations : run.steps;
  if (typeof record[TIME] === "number") run.time = record[TIME];
  for (const [name, value] of Object.entries(record)) {
    if (typeof value !== "number" || name === "step") continue;
    let column = columns.get(name);
    if (!column) columns.set(name, (column = { x: [], y: [], time: [] }));
    column.x.push(record.step);
    column.y.push(value);
    column.time.push(run.time);
  }
}

/** An exponential moving average, freed from the bias of its beginning. */
export function smooth(values, weight) {
  if (!weight) return values;
  let sum = 0;
  let norm = 0;
  return values.map((value) => {
    sum = sum * weight + value * (1 - weight);
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

/** Where in a rising column the value nearest to `x` is. */
export function nearest(column, x) {
  let low = 0;
  let high = column.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && Math.abs(column[low - 1] - x) <= Math.abs(column[low] - x) ? low - 1 : low;
}
