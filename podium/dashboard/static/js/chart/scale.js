// From data to pixels and back, and where the ticks go. Pure functions.

export function linear(low, high, from, to) {
  const span = high - low || 1;
  return {
    at: (value) => from + ((value - low) / span) * (to - from),
    invert: (pixel) => low + ((pixel - from) / (to - from || 1)) * span,
    ticks: (count) => linearTicks(low, high, count),
  };
}

export function logarithmic(low, high, from, to) {
  const inner = linear(Math.log10(low), Math.log10(high), from, to);
  return {
    at: (value) => (value > 0 ? inner.at(Math.log10(value)) : NaN),
    invert: (pixel) => 10 ** inner.invert(pixel),
    ticks: (count) => logTicks(low, high, count),
  };
}

function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough * 0.75);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) ticks.push(index * step);
  return { ticks, step };
}

function logTicks(low, high, count) {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  if (last - first < 1) return linearTicks(low, high, count);
  const stride = Math.max(1, Math.ceil((last - first + 1) / count));
  const ticks = [];
  for (let power = first; power <= last; power += stride) ticks.push(10 ** power);
  return { ticks, step: ticks[0] };
}

// The range to draw: what the series hold, with a margin; a constant gets room above and below.
export function valueRange(lists, isLog) {
  let low = Infinity;
  let high = -Infinity;
  for (const values of lists) {
    for (const value of values) {
      if (value === null || (isLog && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return null;
  if (isLog) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    return [low - room, high + room];
  }
  const margin = (high - low) * 0.06;
  return [low - margin, high + margin];
}

// The index of the point whose step is nearest.
export function nearest(steps, step) {
  let low = 0;
  let high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle;
    else high = middle;
  }
  return Math.abs(steps[high] - step) < Math.abs(steps[low] - step) ? high : low;
}
