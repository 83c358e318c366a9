/** A graph of tasks as SVG, to be moved, scaled and walked by keyboard. Used for runs, definitions and the editor. */
import { type KeyboardEvent, memo, useCallback, useEffect, useMemo, useRef, useState } from "react";
import "../styles/graph.css";
import { Icon } from "../parts/icons";
import { Failed, Skeleton } from "../parts/states";
import { layout } from "./layout";
import { curve, type FlowEdge, type FlowNode, type Layout, layoutKey, neighbour, type Size } from "./model";
import { Shape } from "./shapes";
import { fitView, reveal, type View, zoomed } from "./view";

const ZOOM_STEP = 1.25;
/** A press that moves less than this is a click. */
const DRAG_PX = 4;

export interface FlowGraphProps {
  nodes: FlowNode[];
  edges: FlowEdge[];
  selected?: string | null;
  onSelect?: (id: string) => void;
  label?: string;
}

export function FlowGraph({ nodes, edges, selected = null, onSelect, label = "Graph of tasks" }: FlowGraphProps) {
  const { found, error, retry } = useLayout(nodes, edges);
  const canvas = useRef<HTMLDivElement>(null);
  const size = useSize(canvas);
  const { view, setView, moved, fitAll } = useView(found, size);
  const dragging = useDrag(canvas, setView);
  useWheel(canvas, setView);
  useEffect(() => {
    const box = selected ? found?.boxes.get(selected) : undefined;
    if (box && size.w > 0) setView((v) => reveal(v, box, size), false);
  }, [selected, found, size, setView]);

  const keys = useCallback(
    (event: KeyboardEvent) => {
      if (event.metaKey || event.ctrlKey || event.altKey) return;
      const by = { "+": ZOOM_STEP, "=": ZOOM_STEP, "-": 1 / ZOOM_STEP }[event.key];
      if (by) setView((v) => zoomed(v, by, size.w / 2, size.h / 2));
      else if (event.key === "0") fitAll();
      else if (!walk(event, found, canvas.current, (box) => setView((v) => reveal(v, box, size)))) return;
      event.preventDefault();
    },
    [found, size, setView, fitAll],
  );

  if (error) return <Failed error={error} retry={retry} />;
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: moves the drawing; every act has a control
    <div className="canvas-frame" onKeyDown={keys}>
      <div className={`canvas pan ${dragging ? "dragging" : ""}`} ref={canvas}>
        {found ? (
          <svg className="dag pan" role="group" aria-label={label} width={size.w} height={size.h}>
            <Arrow />
            <g transform={`translate(${view.x} ${view.y}) scale(${view.k})`}>
              <Edges edges={edges} found={found} />
              <Nodes nodes={nodes} found={found} selected={selected} onSelect={onSelect} />
            </g>
          </svg>
        ) : (
          <Skeleton rows={5} height={60} />
        )}
      </div>
      <div className="zoom" role="group" aria-label="Zoom">
        <ZoomButton
          label="Zoom in (+)"
          icon="plus"
          onClick={() => setView((v) => zoomed(v, ZOOM_STEP, size.w / 2, size.h / 2))}
        />
        <ZoomButton
          label="Zoom out (−)"
          icon="minus"
          onClick={() => setView((v) => zoomed(v, 1 / ZOOM_STEP, size.w / 2, size.h / 2))}
        />
        <ZoomButton label="Show all of it (0)" icon="expand" onClick={fitAll} pressed={!moved} />
      </div>
    </div>
  );
}

function ZoomButton(props: {
  label: string;
  icon: "plus" | "minus" | "expand";
  onClick: () => void;
  pressed?: boolean;
}) {
  return (
    <button type="button" className="btn icon sm" aria-label={props.label} title={props.label} onClick={props.onClick}>
      {props.icon === "minus" ? (
        <svg className="i i-14" viewBox="0 0 16 16" aria-hidden="true">
          <path d="M3.5 8h9" stroke="currentColor" strokeWidth="1.5" strokeLinecap="round" fill="none" />
        </svg>
      ) : (
        <Icon name={props.icon} size={14} />
      )}
    </button>
  );
}

function Arrow() {
  return (
    <defs>
      <marker
        id="edge-end"
        viewBox="0 0 8 8"
        refX="7"
        refY="4"
        markerWidth="7"
        markerHeight="7"
        orient="auto-start-reverse"
      >
        <path d="M1 1 7 4 1 7" fill="none" stroke="var(--line-strong)" strokeWidth="1.4" />
      </marker>
    </defs>
  );
}

const Edges = memo(function Edges({ edges, found }: { edges: FlowEdge[]; found: Layout }) {
  return edges.map((edge, n) => {
    const route = found.routes.get(n);
    if (!route || route.points.length < 2) return null;
    const [first, last] = [route.points[0], route.points.at(-1)];
    const back = first && last && last.y <= first.y;
    return (
      // biome-ignore lint/suspicious/noArrayIndexKey: routes are by place
      <g key={n}>
        <path
          className={`edge ${edge.done ? "done" : ""} ${edge.maybe ? "maybe" : ""}`}
          d={curve(route.points)}
          markerEnd={back ? "url(#edge-end)" : undefined}
        />
        {edge.label && route.label && (
          <text className="elabel" x={route.label.x} y={route.label.y} textAnchor="middle">
            {edge.label.length > 40 ? `${edge.label.slice(0, 39)}…` : edge.label}
          </text>
        )}
      </g>
    );
  });
});

const Nodes = memo(function Nodes(props: {
  nodes: FlowNode[];
  found: Layout;
  selected: string | null;
  onSelect?: (id: string) => void;
}) {
  const first = props.nodes.find((n) => n.id === props.selected)?.id ?? props.nodes[0]?.id;
  return props.nodes.map((node) => {
    const box = props.found.boxes.get(node.id);
    return (
      box && (
        <g
          key={node.id}
          className={`node is-${node.status ?? "none"} ${node.changed ? "is-changed" : ""}`}
          data-node={node.id}
          tabIndex={node.id === first ? 0 : -1}
          role="button"
          aria-pressed={node.id === props.selected}
          onClick={() => props.onSelect?.(node.id)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" && event.key !== " ") return;
            event.preventDefault();
            props.onSelect?.(node.id);
          }}
        >
          <title>
            {[node.name ?? node.id, node.kind === "task" ? "" : node.kind, node.status, node.sub]
              .filter(Boolean)
              .join(", ")}
          </title>
          <Shape node={node} box={box} />
        </g>
      )
    );
  });
});

/** Arrow keys move the focus to the nearest node in that direction. */
function walk(
  event: KeyboardEvent,
  found: Layout | null,
  canvas: HTMLElement | null,
  show: (box: { x: number; y: number; w: number; h: number }) => void,
): boolean {
  const at = (event.target as Element).closest?.("[data-node]")?.getAttribute("data-node");
  const next = at && found ? neighbour(found.boxes, at, event.key) : null;
  if (!next) return false;
  canvas?.querySelector<SVGGElement>(`[data-node="${CSS.escape(next)}"]`)?.focus({ preventScroll: true });
  const box = found?.boxes.get(next);
  if (box) show(box);
  return true;
}

function useLayout(nodes: FlowNode[], edges: FlowEdge[]) {
  const key = useMemo(() => layoutKey(nodes, edges), [nodes, edges]);
  const given = useRef({ nodes, edges });
  given.current = { nodes, edges };
  const [state, setState] = useState<{ found: Layout | null; error: Error | null }>({ found: null, error: null });
  const [tries, setTries] = useState(0);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key says when the shape changes, tries when to ask again
  useEffect(() => {
    let current = true;
    layout(given.current.nodes, given.current.edges).then(
      (found) => current && setState({ found, error: null }),
      (error) => current && setState({ found: null, error: error instanceof Error ? error : new Error(String(error)) }),
    );
    return () => {
      current = false;
    };
  }, [key, tries]);
  return { ...state, retry: () => setTries((n) => n + 1) };
}

function useSize(element: React.RefObject<HTMLElement | null>): Size {
  const [size, setSize] = useState<Size>({ w: 0, h: 0 });
  useEffect(() => {
    const node = element.current;
    if (!node) return;
    const watch = new ResizeObserver(() => setSize({ w: node.clientWidth, h: node.clientHeight }));
    watch.observe(node);
    return () => watch.disconnect();
  }, [element]);
  return size;
}

/** The whole graph until the person moves it; from then on what the person chose. */
function useView(found: Layout | null, size: Size) {
  const [chosen, setChosen] = useState<View | null>(null);
  const fitted = useMemo(
    () => fitView({ w: found?.width ?? 0, h: found?.height ?? 0 }, size),
    [found?.width, found?.height, size],
  );
  const latest = useRef(fitted);
  latest.current = fitted;
  const setView = useCallback((change: (view: View) => View, byPerson = true) => {
    setChosen((view) => {
      const next = change(view ?? latest.current);
      const same = next.x === latest.current.x && next.y === latest.current.y && next.k === latest.current.k;
      return view === null && (same || !byPerson) ? (same ? null : next) : next;
    });
  }, []);
  const fitAll = useCallback(
    () => setChosen(fitView({ w: found?.width ?? 0, h: found?.height ?? 0 }, size, true)),
    [found, size],
  );
  return { view: chosen ?? fitted, setView, moved: chosen !== null, fitAll };
}

type SetView = (change: (view: View) => View) => void;

function useDrag(canvas: React.RefObject<HTMLElement | null>, setView: SetView): boolean {
  const [dragging, setDragging] = useState(false);
  useEffect(() => {
    const node = canvas.current;
    if (!node) return;
    let from: { x: number; y: number; id: number } | null = null;
    let moving = false;
    const down = (event: globalThis.PointerEvent) => {
      if (event.button === 0) from = { x: event.clientX, y: event.clientY, id: event.pointerId };
    };
    const move = (event: globalThis.PointerEvent) => {
      if (!from || event.pointerId !== from.id) return;
      const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
      if (!moving && Math.hypot(dx, dy) < DRAG_PX) return;
      if (!moving) {
        moving = true;
        node.setPointerCapture(event.pointerId);
        setDragging(true);
      }
      from = { ...from, x: event.clientX, y: event.clientY };
      setView((v) => ({ ...v, x: v.x + dx, y: v.y + dy }));
    };
    const up = () => {
      from = null;
      moving = false;
      setDragging(false);
    };
    // A drag ends with a click on what is under the pointer; it selects nothing.
    const click = (event: Event) => node.classList.contains("dragging") && event.stopPropagation();
    node.addEventListener("pointerdown", down);
    node.addEventListener("pointermove", move);
    node.addEventListener("pointerup", up);
    node.addEventListener("pointercancel", up);
    node.addEventListener("click", click, true);
    return () => {
      node.removeEventListener("pointerdown", down);
      node.removeEventListener("pointermove", move);
      node.removeEventListener("pointerup", up);
      node.removeEventListener("pointercancel", up);
      node.removeEventListener("click", click, true);
    };
  }, [canvas, setView]);
  return dragging;
}

/** The wheel moves the drawing; with Ctrl, ⌘ or a pinch it scales about the pointer. */
function useWheel(canvas: React.RefObject<HTMLElement | null>, setView: SetView): void {
  useEffect(() => {
    const node = canvas.current;
    if (!node) return;
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      const { left, top } = node.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey)
        setView((v) => zoomed(v, Math.exp(-event.deltaY / 300), event.clientX - left, event.clientY - top));
      else setView((v) => ({ ...v, x: v.x - event.deltaX, y: v.y - event.deltaY }));
    };
    node.addEventListener("wheel", wheel, { passive: false });
    return () => node.removeEventListener("wheel", wheel);
  }, [canvas, setView]);
}
