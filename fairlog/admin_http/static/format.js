// Figures for people. Widths change as little as may be, so that nothing jumps from one second to the next.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export function count(number) {
  return whole.format(number);
}

/** "1 record", "2 records". */
export function many(number, word) {
  return `${whole.format(number)} ${word}${number === 1 ? "" : "s"}`;
}

export function rate(perSecond) {
  return perSecond < 10 && perSecond > 0 ? one.format(perSecond) : whole.format(perSecond);
}

export function bytes(number) {
  let unit = 0;
  while (number >= 1000 && unit < 5) {
    number /= 1024;
    unit += 1;
  }
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  return `${unit && number < 100 ? one.format(number) : whole.format(number)} ${units[unit]}`;
}

/** A duration that is over, or that the eye need not follow: two figures of it. */
export function duration(ms) {
  if (ms < 1) return `${Math.max(0, Math.round(ms * 1000))} µs`;
  if (ms < 10) return `${one.format(ms)} ms`;
  if (ms < 1000) return `${whole.format(ms)} ms`;
  if (ms < 10_000) return `${one.format(ms / 1000)} s`;
  return age(ms);
}

/** A duration that goes on, in whole seconds. */
export function age(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} m ${String(seconds % 60).padStart(2, "0")} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${String(minutes % 60).padStart(2, "0")} m`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function timeOfDay(unixMs) {
  return new Date(unixMs).toLocaleTimeString("en-GB");
}

/** "topic/3"; what is left of a topic that was deleted. */
export function place(at) {
  return at.deleted ? `deleted topic ${at.topic.slice(0, 8)}…/${at.partition}` : `${at.topic}/${at.partition}`;
}
