/** The router. A page is loaded when it is first opened. */
import { createRootRoute, createRoute, createRouter, lazyRouteComponent, redirect } from "@tanstack/react-router";
import { PAGES } from "./pages";
import { Missing, PageError } from "./shell/Missing";
import { Shell } from "./shell/Shell";

const root = createRootRoute({ component: Shell, notFoundComponent: Missing, errorComponent: PageError });

const home = createRoute({
  getParentRoute: () => root,
  path: "/",
  beforeLoad: () => {
    throw redirect({ to: "/runs", search: true as never, replace: true } as never);
  },
});

const tree = root.addChildren([
  home,
  ...PAGES.map(([path, load, name]) =>
    createRoute({ getParentRoute: () => root, path, component: lazyRouteComponent(load as never, name as never) }),
  ),
]);

export const router = createRouter({
  routeTree: tree,
  defaultPreload: "intent",
  // Plain texts in the query: it is read by people and written by the command line too.
  parseSearch: (text) => Object.fromEntries(new URLSearchParams(text)),
  stringifySearch: (search) => {
    const text = new URLSearchParams(search as Record<string, string>).toString();
    return text ? `?${text}` : "";
  },
  scrollRestoration: false,
});
