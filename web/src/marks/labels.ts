/** Places for the labels of guides, so that none lies on another. */

export interface Label {
  text: string;
  colour: string;
  /** Left end and middle of the text. */
  x: number;
  y: number;
}

export interface Wanted {
  text: string;
  colour: string;
  width: number;
  /** Where the guide lies, in pixels across the box. */
  at: number;
}

export const LABEL_HEIGHT = 13;

/** Labels of horizontal guides: above their line (at the top: below), at the right, pushed apart where they meet. */
export function besideRows(wanted: readonly Wanted[], right: number, top: number, bottom: number): Label[] {
  const sorted = [...wanted].sort((a, b) => a.at - b.at);
  const limit = bottom - LABEL_HEIGHT / 2;
  const places: number[] = [];
  for (const { at } of sorted) {
    const free = places.length ? places[places.length - 1]! + LABEL_HEIGHT : top + LABEL_HEIGHT / 2 + 1;
    const above = at - LABEL_HEIGHT / 2 - 1;
    places.push(Math.max(free, above < top + LABEL_HEIGHT / 2 ? at + LABEL_HEIGHT / 2 + 2 : above));
  }
  for (let index = places.length - 1, floor = limit; index >= 0; index--, floor -= LABEL_HEIGHT) {
    places[index] = Math.min(places[index]!, floor);
  }
  return sorted.map(({ text, colour, width }, index) => ({
    text,
    colour,
    x: right - width - 5,
    y: places[index]!,
  }));
}

/** Labels of vertical guides: to the right of their line or, at the edge, to the left; in as many rows as needed. */
export function besideColumns(wanted: readonly Wanted[], left: number, right: number, top: number): Label[] {
  const ends: number[] = [];
  return [...wanted]
    .sort((a, b) => a.at - b.at)
    .map(({ text, colour, width, at }) => {
      const x = Math.max(left + 2, at + 4 + width > right ? at - 4 - width : at + 4);
      let row = ends.findIndex((end) => end + 6 <= x);
      if (row < 0) row = ends.length;
      ends[row] = x + width;
      return { text, colour, x, y: top + LABEL_HEIGHT / 2 + 1 + row * LABEL_HEIGHT };
    });
}
