/** The small script that runs first: data, frame and page are asked for at the same time. */
import "./styles/tokens.css";
import "./styles/ui.css";
import "./styles/parts.css";
import "./styles/pages.css";
import { askEarly } from "./api/early";
import { loaderOf } from "./pages";

askEarly(location);
void import("./app");
// A page that does not load says so when the router asks for it again.
loaderOf(location.pathname)?.().catch(() => undefined);
