import { mount } from "svelte";
import App from "./App.svelte";
import { serverApi, takeToken } from "./lib/api";
import { Cockpit } from "./lib/state.svelte";
import { foundReport, staticApi } from "./lib/staticApi";
import "./styles/page.css";

const report = foundReport(document);
const api = report ? staticApi(report) : serverApi(takeToken(location, history));
const cockpit = new Cockpit(api, "compact" in document.documentElement.dataset);
mount(App, { target: document.getElementById("app")!, props: { cockpit } });

declare global {
  interface Window {
    /** For tests in a browser: what is shown, as data instead of pixels. */
    __cockpit: { state: Cockpit };
  }
}
window.__cockpit = { state: cockpit };
