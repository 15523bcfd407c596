/** What keeps the page from the server at the moment: one sentence for the banner, gone with the next answer. */

class Trouble {
  text = $state("");

  report(error: unknown): void {
    this.text = error instanceof Error ? error.message : String(error);
  }

  over(): void {
    this.text = "";
  }
}

export const trouble = new Trouble();
