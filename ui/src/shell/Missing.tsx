import { Empty, Failed } from "../parts/states";
import { TopBar } from "./TopBar";

export function Missing() {
  return (
    <>
      <TopBar title="Not found" />
      <Empty title="There is no such page">
        The address <code>{location.pathname}</code> leads nowhere. Use the navigation, or press <kbd>?</kbd> for all
        keys.
      </Empty>
    </>
  );
}

/** A page that failed while it was drawn or loaded. The frame stays. */
export function PageError({ error }: { error: unknown }) {
  return (
    <>
      <TopBar title="Error" />
      <Failed error={error instanceof Error ? error : new Error(String(error))} retry={() => location.reload()} />
    </>
  );
}
