/** An error: what it says, the person's own frames, and those of libraries folded. */
import { useMemo, useState } from "react";
import type { Schemas } from "../../api/client";
import { plural } from "../../format/numbers";
import { Icon } from "../../parts/icons";
import { TextBlock, visible } from "../../parts/Payload";
import { type Frame, ownFirst, packagesOf, parseTraceback, shortFile, type TraceBlock } from "../traceback";

export function ErrorView({ error }: { error: Schemas["ErrorInfo"] }) {
  const blocks = useMemo(() => parseTraceback(error.traceback ?? ""), [error.traceback]);
  const [raw, setRaw] = useState(false);
  return (
    <>
      <div className="err">
        <b>{error.type || error.code}</b>
        <p>{visible(error.message.slice(0, 4_000))}</p>
      </div>
      {raw ? (
        <TextBlock text={error.traceback ?? ""} />
      ) : (
        blocks.map((block, n) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the blocks of one text
          <Block key={n} block={block} first={n === 0} />
        ))
      )}
      {blocks.length > 0 && (
        <button type="button" className="lib" onClick={() => setRaw(!raw)}>
          <Icon name="file" size={12} />
          {raw ? "Show frames" : "Show the traceback as text"}
        </button>
      )}
    </>
  );
}

function Block({ block, first }: { block: TraceBlock; first: boolean }) {
  const { own, library } = ownFirst(block.frames);
  const [open, setOpen] = useState(own.length === 0 && library.length <= 3);
  return (
    <>
      {!first && (
        <p className="small muted chained">
          after <b>{visible(block.head.slice(0, 400))}</b>
        </p>
      )}
      {own.map((frame, n) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the frames of one text
        <FrameView key={n} frame={frame} />
      ))}
      {library.length > 0 && (
        <button type="button" className="lib" aria-expanded={open} onClick={() => setOpen(!open)}>
          <Icon name={open ? "down" : "right"} size={12} />
          {plural(library.length, "library frame")}: {packagesOf(library).join(", ")}
        </button>
      )}
      {open &&
        library.map((frame, n) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the frames of one text
          <FrameView key={n} frame={frame} quiet />
        ))}
    </>
  );
}

function FrameView({ frame, quiet = false }: { frame: Frame; quiet?: boolean }) {
  return (
    <div className={`frame ${quiet ? "quiet" : ""}`}>
      <header>
        <span className="mono clip" title={frame.file}>
          {shortFile(frame.file)}:{frame.line}
        </span>
        <span className="faint clip">in {frame.fn}</span>
      </header>
      {frame.code.length > 0 && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
        <pre tabIndex={0}>
          {frame.code.map((text, n) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: the lines of one frame
            <code key={n} className={`ln ${quiet ? "" : "hit"}`} data-n={frame.line + n}>
              {visible(text)}
            </code>
          ))}
        </pre>
      )}
    </div>
  );
}
