/** 1,284; a true minus; a dash for what is missing. */
export function count(n: number | null | undefined): string {
  if (n === null || n === undefined) return "–";
  const [whole = "", part] = String(Math.round(n * 1000) / 1000).split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",").replace("-", "−");
  return part ? `${grouped}.${part}` : grouped;
}

/** 4.1, 212, 0.6: at most two significant decimals, for rates. */
export function rate(n: number | null | undefined): string {
  if (n === null || n === undefined) return "–";
  if (n === 0) return "0";
  return n >= 100 ? count(Math.round(n)) : n >= 10 ? n.toFixed(0) : n.toFixed(n < 1 ? 2 : 1);
}

/** 81 %; never 100 % or 0 % for what is not quite. */
export function percent(part: number, whole: number, digits = 0): string {
  if (whole === 0) return "–";
  const value = (part / whole) * 100;
  const step = 10 ** -digits;
  const shown = part > 0 && value < step ? step : part < whole && value > 100 - step ? 100 - step : value;
  return `${shown.toFixed(digits)} %`;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(n: number): string {
  let size = n;
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}

/** 1 run, 2 runs. */
export function plural(n: number, one: string, more = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : more}`;
}
