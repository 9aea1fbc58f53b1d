# A journey for Locust: each user logs in once, then looks at one to five pages and orders in three of ten visits.
import os
import random

import gevent
from locust import FastHttpUser, task


class Shopper(FastHttpUser):
    host = os.environ["TARGET"]

    def on_start(self):
        self.token = self.client.post("/login", json={"user": "ada"}, name="login").json()["token"]

    @task
    def visit(self):
        pages = random.randint(1, 5)
        for number in range(pages):
            self.client.get(f"/page?id={number}", name="page")
            gevent.sleep(random.uniform(0.1, 0.3))
        if random.random() < 0.3:
            headers = {"Authorization": f"Bearer {self.token}"}
            self.client.post("/order", json={"item": pages}, headers=headers, name="order")
