// Puts the types of the messages beside those that tsc made of lib/: it copies no declaration that it was given.
import { copyFileSync } from "node:fs";

const [from, to] = ["lib", "types"].map((folder) => new URL(`../${folder}/messages.d.ts`, import.meta.url));
copyFileSync(from, to);
