/** The step under the pointer, shared by all plots with a step axis. */

export const link = $state<{ step: number | null }>({ step: null });
