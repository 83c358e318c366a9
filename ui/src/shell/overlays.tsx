import { createContext, useContext } from "react";

interface OverlayActs {
  openPalette: () => void;
  openKeys: () => void;
}

const Context = createContext<OverlayActs>({ openPalette: () => {}, openKeys: () => {} });
export const Overlays = Context.Provider;

export function useOverlays(): OverlayActs {
  return useContext(Context);
}
