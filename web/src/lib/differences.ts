/** What sets runs apart: the settings that are not the same in all of them, and how they came out. */

import type { RunCard } from "./api";
import { brief, duration, percent, setting, whole } from "./format";

export interface Line {
  name: string;
  /** One for each run. */
  values: string[];
}

/** The settings in which the runs differ, and the number of those they share. */
export function differences(cards: RunCard[]): { lines: Line[]; same: number } {
  const settings = cards.map((card) => ({
    model: card.model,
    optimizer: card.optimizer,
    config: card.config,
    device: card.device,
    ...card.hyperparameters,
  }));
  const names = [...new Set(settings.flatMap((found) => Object.keys(found)))];
  const all = names.map((name) => ({
    name,
    values: settings.map((found) => setting((found as Record<string, unknown>)[name])),
  }));
  const lines = all.filter(({ values }) => values.some((value) => value !== values[0]));
  return { lines, same: all.length - lines.length };
}

export function outcomes(cards: RunCard[]): Line[] {
  const line = (name: string, text: (card: RunCard) => string) => ({ name, values: cards.map(text) });
  return [
    line("status", (card) => card.status),
    line("last loss", (card) => brief(card.loss)),
    line("last step", (card) => whole(card.last_step)),
    line("time", (card) => duration(card.started !== null && card.ended !== null ? card.ended - card.started : null)),
    line("overhead of watching", (card) => percent(card.overhead)),
  ];
}
