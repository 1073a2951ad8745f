from trainer import Trainer

if __name__ == "__main__":
    first = Trainer.start()
    first.run(range(3))
    Trainer.resume(first.save()).run(range(3, 6))
