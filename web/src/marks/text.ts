/** Fonts and widths of labels on canvases. */

export const FONT_SIZE = 11;

let sheet: CanvasRenderingContext2D | null | undefined;
const widths = new Map<string, number>();

/** The font of an element, at the size of labels. */
export function fontOf(element: Element | null): string {
  const family = element ? getComputedStyle(element).fontFamily : "";
  return `${FONT_SIZE}px ${family || "system-ui, sans-serif"}`;
}

/** A function that tells how wide texts are in a font. */
export function measurer(font: string): (text: string) => number {
  return (text) => {
    const key = `${font} ${text}`;
    let width = widths.get(key);
    if (width === undefined) {
      if (sheet === undefined) sheet = document.createElement("canvas").getContext("2d");
      if (sheet) sheet.font = font;
      width = sheet?.measureText(text).width ?? 6.2 * text.length;
      // Live pages meet new numbers for ever.
      if (widths.size > 5000) widths.clear();
      widths.set(key, width);
    }
    return width;
  };
}
