// A journey for k6: each user logs in once, then looks at one to five pages and orders in three of ten visits.
import http from "k6/http";
import { sleep } from "k6";

const TARGET = __ENV.TARGET;
let token; // of this user: every one has its own copy of this file's variables

export default function () {
  if (token === undefined) {
    const answer = http.post(`${TARGET}/login`, JSON.stringify({ user: "ada" }), { tags: { name: "login" } });
    token = answer.json("token");
  }
  const pages = 1 + Math.floor(Math.random() * 5);
  for (let number = 1; number <= pages; number++) {
    http.get(`${TARGET}/page?id=${number}`, { tags: { name: "page" } });
    sleep(0.1 + Math.random() * 0.2);
  }
  if (Math.random() < 0.3) {
    const headers = { Authorization: `Bearer ${token}` };
    http.post(`${TARGET}/order`, JSON.stringify({ item: pages }), { headers, tags: { name: "order" } });
  }
}
