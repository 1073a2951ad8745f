import torch

from distil import Distiller

torch.manual_seed(17)
model = Distiller()
for p in model.teacher.parameters():
    torch.nn.init.normal_(p, std=0.4)
opt = torch.optim.SGD(model.student.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(96, 10), torch.randint(0, 4, (96,))
for step in range(6):
    loss = model(x[step * 12:step * 12 + 12], y[step * 12:step * 12 + 12])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", step, f"{loss.item():.9g}")
    if step == 2:
        model.eval()
        with torch.no_grad():
            acc = (model.student(x[72:]).argmax(1) == y[72:]).float().mean()
        print("accuracy", f"{acc.item():.9g}")
        model.train()
