// Numbers, durations and ages as people read them.

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 1) return value.toFixed(2);
  if (size >= 0.001 || size === 0) return value.toFixed(3);
  return value.toExponential(1);
}

// A value in full, for read-outs: six digits that matter.
export function exact(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  return String(Number(value.toPrecision(6)));
}

export function count(value) {
  return value.toLocaleString("en-US");
}

// An axis label: as few digits as tell one tick from the next.
export function tick(value, step) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(Math.max(0, Math.min(3, Math.ceil(Math.log10(size / step) - 1e-9))));
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(Math.abs(step) || 1))));
  return value.toFixed(digits);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return "<1 ms";
  if (value < 1) return `${(value * 1000).toPrecision(3)} ms`;
  if (value < 100) return `${value.toPrecision(3)} s`;
  return duration(value);
}

export function duration(value) {
  const whole = Math.max(0, Math.round(value));
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}

export function ago(value) {
  if (value < 5) return "just now";
  if (value < 60) return `${Math.round(value)} s ago`;
  if (value < 3600) return `${Math.round(value / 60)} min ago`;
  if (value < 48 * 3600) return `${Math.round(value / 3600)} h ago`;
  return `${Math.round(value / 86400)} d ago`;
}

export function clock(time) {
  return new Date(time * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

export function percent(value) {
  return `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
}
