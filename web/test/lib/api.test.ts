import { afterEach, describe, expect, it, vi } from "vitest";
import { query, Refusal, serverApi, takeToken } from "../../src/lib/api";

afterEach(() => void vi.unstubAllGlobals());

function answering(body: unknown, status = 200) {
  const fetched = vi.fn(async (_path: string, _init: RequestInit) => new Response(JSON.stringify(body), { status }));
  vi.stubGlobal("fetch", fetched);
  return fetched;
}

describe("asking the server", () => {
  it("uses relative addresses and encodes every name", async () => {
    const fetched = answering({ sequence: 1, chart: { name: "x" } });
    await serverApi(null).chart("a/b", "../x", { step: 0, first: null, points: 100, scope: "net.0&1" });
    expect(fetched.mock.calls[0]![0]).toBe("api/runs/a%2Fb/charts/..%2Fx?step=0&points=100&scope=net.0%261");
  });

  it("sends a token as a header and then does not stream", async () => {
    const fetched = answering({ runs: [] });
    const api = serverApi("secret");
    await api.runs();
    expect(fetched.mock.calls[0]![1].headers).toEqual({ "X-Cockpit-Token": "secret" });
    expect(api.stream).toBeNull();
    expect(serverApi(null).stream).toBe("api/ticks");
  });

  it.each([
    [401, "token"],
    [404, "not know"],
    [500, "500"],
  ])("says what a refusal with %s means", async (status, words) => {
    answering({}, status);
    const error = await serverApi(null)
      .runs()
      .catch((error: unknown) => error);
    expect(error).toBeInstanceOf(Refusal);
    expect((error as Refusal).status).toBe(status);
    expect((error as Refusal).message).toContain(words);
  });

  it("says so when nobody answers or the answer breaks off", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError("failed")));
    await expect(serverApi(null).runs()).rejects.toThrow("does not answer");
    vi.stubGlobal("fetch", async () => new Response("{"));
    await expect(serverApi(null).runs()).rejects.toThrow("broke off");
  });

  it("leaves out of a query what is not set", () => {
    expect(query({})).toBe("");
    expect(query({ step: null, scope: "", first: 0 })).toBe("?first=0");
  });
});

describe("the token", () => {
  it("is taken out of the address bar, all else stays", () => {
    history.replaceState(null, "", "/?token=abc&x=1#tab=layers");
    expect(takeToken(location, history)).toBe("abc");
    expect(location.href).toMatch(/\/\?x=1#tab=layers$/);
    expect(takeToken(location, history)).toBeNull();
  });
});
