/** The frame of every page: navigation, top bar, palette, key sheet. */
import { Outlet } from "@tanstack/react-router";
import { useState } from "react";
import { SessionProvider } from "../api/session";
import { Failed } from "../parts/states";
import { KeySheet } from "./KeySheet";
import { useKeys } from "./keys";
import { Nav } from "./Nav";
import { Overlays } from "./overlays";
import { Palette } from "./Palette";
import { SignIn } from "./SignIn";
import { nextTheme } from "./theme";
import { Toasts, toast } from "./toasts";
import { useGo } from "./url";

/** The frame once a person is signed in; the sign-in page before. */
export function Shell() {
  return (
    <SessionProvider
      signedOut={(session, signIn) => <SignIn session={session} signIn={signIn} />}
      loading={<div className="shell" aria-busy="true" />}
      failed={(error, retry) => <Failed error={error} retry={retry} />}
    >
      <Frame />
    </SessionProvider>
  );
}

function Frame() {
  const [overlay, setOverlay] = useState<"palette" | "keys" | null>(null);
  const go = useGo();
  useKeys({
    "mod+k": () => setOverlay(overlay === "palette" ? null : "palette"),
    "?": () => setOverlay("keys"),
    t: () => toast(`Theme: ${nextTheme()}`),
    "g r": () => go("/runs"),
    "g w": () => go("/workflows"),
    "g s": () => go("/schedules"),
    "g a": () => go("/approvals"),
    "g k": () => go("/workers"),
    "g l": () => go("/limits"),
    "g d": () => go("/dead-letters"),
  });
  return (
    <Overlays value={{ openPalette: () => setOverlay("palette"), openKeys: () => setOverlay("keys") }}>
      <a className="skip" href="#main">
        Skip to content
      </a>
      <div className="shell">
        <Nav />
        <main className="sheet" id="main" tabIndex={-1}>
          <Outlet />
        </main>
      </div>
      {overlay === "palette" && <Palette onClose={() => setOverlay(null)} />}
      {overlay === "keys" && <KeySheet onClose={() => setOverlay(null)} />}
      <Toasts />
    </Overlays>
  );
}
