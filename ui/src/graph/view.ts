/** Where a person looks at a graph: a shift and a scale. */
import type { Size } from "./model";

export interface View {
  x: number;
  y: number;
  k: number;
}

export const SCALE_MIN = 0.15;
export const SCALE_MAX = 2.5;
/** A graph that does not fit at this scale is shown from its top instead: text must stay readable. */
const FIT_MIN = 0.8;

export function fitView(graph: Size, canvas: Size, whole = false): View {
  if (graph.w === 0 || canvas.w === 0) return { x: 0, y: 0, k: 1 };
  const least = whole ? SCALE_MIN : FIT_MIN;
  const k = Math.max(Math.min(canvas.w / graph.w, canvas.h / graph.h, 1), least);
  return { x: (canvas.w - graph.w * k) / 2, y: Math.max(0, Math.min((canvas.h - graph.h * k) / 2, 8)), k };
}

/** Scale about a point of the canvas, which stays where it is. */
export function zoomed(view: View, by: number, px: number, py: number): View {
  const k = Math.min(Math.max(view.k * by, SCALE_MIN), SCALE_MAX);
  const real = k / view.k;
  return { x: px - (px - view.x) * real, y: py - (py - view.y) * real, k };
}

/** The least shift that brings a box into sight. */
export function reveal(view: View, box: { x: number; y: number; w: number; h: number }, canvas: Size, gap = 24): View {
  const shift = (from: number, size: number, at: number, room: number): number => {
    const low = from + at;
    const high = low + size;
    if (low < gap) return gap - low;
    if (high > room - gap) return Math.max(room - gap - high, gap - low);
    return 0;
  };
  return {
    ...view,
    x: view.x + shift(box.x * view.k, box.w * view.k, view.x, canvas.w),
    y: view.y + shift(box.y * view.k, box.h * view.k, view.y, canvas.h),
  };
}
