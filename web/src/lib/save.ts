/** Hand the reader a file. */

export function save(content: Blob | string, name: string): void {
  const blob = typeof content === "string" ? new Blob([content], { type: "text/csv;charset=utf-8" }) : content;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  // Names of runs may hold anything; names of files may not.
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
