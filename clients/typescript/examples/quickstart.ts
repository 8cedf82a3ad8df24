import { Fleet } from "roundhouse-client";

const fleet = new Fleet({
  url: process.env["ROUNDHOUSE_URL"] ?? "http://127.0.0.1:8000",
  productKey: process.env["ROUNDHOUSE_PRODUCT_KEY"] ?? "",
});

const engine = await fleet.admit("ada");
console.log(await engine.run("hello", "Hello!").text());
