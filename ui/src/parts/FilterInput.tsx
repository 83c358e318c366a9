import { useEffect, useRef, useState } from "react";

const TYPING_MS = 300;

/** A field of a filter. What is typed reaches the address a moment later. */
export function FilterInput(props: {
  id: string;
  label: string;
  value: string;
  wide?: boolean;
  onChange: (value: string) => void;
}) {
  const [text, setText] = useState(props.value);
  const sent = useRef(props.value);
  useEffect(() => {
    if (props.value !== sent.current) setText(props.value);
    sent.current = props.value;
  }, [props.value]);
  const latest = useRef(props.onChange);
  latest.current = props.onChange;
  useEffect(() => {
    if (text === sent.current) return;
    const timer = setTimeout(() => {
      sent.current = text.trim();
      latest.current(text.trim());
    }, TYPING_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <input
      id={props.id}
      className={`input ${props.wide ? "wide-input" : ""}`}
      type="search"
      placeholder={props.label}
      aria-label={props.label}
      value={text}
      onChange={(event) => setText(event.target.value)}
      spellCheck={false}
    />
  );
}
