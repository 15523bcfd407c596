/** `npm run dev`, then /gallery.html: all samples and, if `cockpit show` answers, all instruments of its newest run. */

import { mount } from "svelte";

import type { Chart } from "../../src/lib/chart";
import Gallery from "./Gallery.svelte";
import { samples } from "./samples";

async function served(): Promise<Chart[]> {
  const get = async (address: string) => (await fetch(address)).json();
  try {
    const id = (await get("api/runs")).runs[0].id;
    const names: { name: string }[] = (await get(`api/runs/${id}`)).instruments;
    return await Promise.all(
      names.map(async ({ name }) => (await get(`api/runs/${id}/charts/${name}`)).chart),
    );
  } catch {
    return [];
  }
}

const theme = location.search.includes("light") ? "light" : "dark";
const charts = location.search.includes("samples") ? samples : [...(await served()), ...samples];
mount(Gallery, { target: document.getElementById("gallery")!, props: { charts, theme } });
