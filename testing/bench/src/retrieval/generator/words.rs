//! The word lists of the generated conversations.

/// The lists by the name of their slot; the words of each are separated by commas.
#[rustfmt::skip]
pub(super) const LISTS: &[(&str, &str)] = &[
    ("town", "Leeds, Ghent, Porto, Tartu, Malmo, Graz, Lublin, Cork, Aarhus, Bilbao, Trieste, Brno, Turku, \
      Utrecht, Dundee, Nantes, Girona, Kassel, Bergen, Pula, Varna, Kaunas, Exeter, Lucca, Namur, Zwolle, \
      Odense, Vigo, Linz, Szeged, Sligo, Parma, Jena, Tampere, Bruges, Coimbra, Ostrava, Split, Derby, \
      Lugano, Haarlem, Rennes, Siegen, Uppsala, Galway, Murcia, Pecs, Torun, Bath, Alkmaar, Como, Dijon, \
      Erfurt, Falun, Ipswich, Kotor, Liepaja, Modena, Narva, Orebro, Perth, Rouen, Swansea, Trondheim, \
      Viborg, Zadar"),
    ("country", "Peru, Vietnam, Iceland, Morocco, Georgia, Scotland, Sicily, Norway, Nepal, Jordan, Crete, \
      Slovenia, Oman, Corsica, Estonia, Madeira, Albania, Finland, Cuba, Tunisia, Wales, Bolivia, Malta, \
      Andalusia, Brittany, Senegal, Lapland, Romania, Sardinia, Mexico"),
    ("her name", "Nadia, Ingrid, Maud, Paula, Thandi, Keira, Rosalind, Bettina, Chiara, Dorota, Emine, \
      Farah, Gesa, Hilde, Ilse, Joyce, Kinga, Lotte, Mireille, Noemi, Ottilie, Pernilla, Rania, Sigrid, \
      Tove, Uma, Veronika, Wilma, Yasmin, Zuzana, Astrid, Brigid, Corinne, Deborah, Eszter, Flora, \
      Gudrun, Heather, Ivana, Jadwiga, Karin, Lydia, Mathilde, Nerea, Olivia, Phoebe, Ruth, Stella, \
      Tabea, Valerie, Alma, Blanca, Carla, Daphne, Edith, Frida, Gloria, Hanne, Iris, Johanna, Katrin, \
      Leonie, Marlene, Nicola, Paloma, Regina, Simone, Teresa, Ulrike, Vesna, Antonia, Camille, Doris, \
      Elsa, Fenna, Greer, Helen"),
    ("his name", "Tom, Bruno, Cyril, Dario, Egon, Frank, Gerard, Hannes, Igor, Jasper, Konrad, Lars, Marek, \
      Norbert, Oliver, Patrick, Roland, Samir, Till, Uwe, Vasil, Werner, Youssef, Albert, Basil, Carsten, \
      Damian, Erwin, Fabio, Gunnar, Harald, Ivar, Julian, Kilian, Laszlo, Mirko, Nuno, Ole, Philip, Quirin, \
      Rune, Stanley, Theo, Ulf, Victor, Wim, Xander, Achim, Bernard, Clive, Derek, Einar, Fergus, Guido, \
      Hector, Ian, Jorge, Kurt, Leif, Moritz, Neil, Oscar, Pascal, Ralph, Sven, Timo, Vaclav, Wayne, Adrian, \
      Bela, Conor, Duncan, Ernst, Felix, Goran, Howard"),
    ("kin", "cousin, colleague, neighbour, friend, former flatmate, brother-in-law, sister-in-law, godchild, \
      schoolmate, running partner, landlord, choir friend, dentist friend, nephew, niece, team lead, \
      pen pal"),
    ("surname", "Hartley, Brandao, Winther, Sobczak, Achterberg, Moss, Lindholm, Carrick, Vogt, Esposito, \
      Ferrer, Gallo, Hovland, Ilves, Jansson, Kessler, Lund, Maric, Noonan, Ostrow, Prince, Quill, Raske, \
      Salo, Tench, Urban, Verbeek, Wicks, Yates, Zeller, Amsel, Birch, Crane, Dorn, Elster, Finch, Grebe, \
      Heron, Ibis, Jay, Knox, Larch, Merle, Nord, Orme, Pike, Rook, Stork, Thrush, Upton, Vale, Wren"),
    ("street", "Mill Lane, Station Road, Canal Street, Church Hill, Rope Walk, Harbour Road, Linden Avenue, \
      Quarry Lane, Weaver Street, Abbey Road, Orchard Close, Castle Street, Tanner Row, Bishop Street, \
      Foundry Lane, Meadow Way, Observatory Hill, Chapel Street, Dyke Road, Salt Market"),
    ("colour", "dark green, mustard, burgundy, turquoise, off-white, charcoal, salmon pink, navy, copper, \
      lilac, olive, cream, cobalt, rust red, silver, teal, plum, sand, mint, apricot, ivory, maroon"),
    ("dish", "mushroom risotto, fish pie, lamb tagine, lentil soup, goulash, pumpkin ravioli, paella, \
      shepherd's pie, pad thai, onion tart, stuffed peppers, ramen, chilli, moussaka, dumplings, roast duck, \
      borscht, gnocchi, falafel, pierogi, laksa, cheese fondue, bibimbap, fish tacos, sauerkraut stew"),
    ("small number", "two, three, four, five, six, seven, eight, nine, eleven, twelve"),
    ("number", "14, 17, 23, 26, 31, 38, 42, 47, 53, 59, 64, 68, 71, 76, 83, 87, 92, 95, 110, 124, 135, 148, \
      160, 175, 190, 215, 240, 265, 290, 320, 345, 380, 410, 460, 520, 575, 640, 730, 815, 940"),
    ("weekday", "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    ("season", "spring, summer, autumn, winter"),
    ("weather", "drizzle, fog, heat, wind, hail, frost, thunder, sunshine, sleet, mist, rain, snow"),
    ("chore", "laundry, ironing, taxes, dishes, shopping, vacuuming, recycling, windows, paperwork, cellar, \
      attic, gutters, fridge, post, hedge, bathroom, inbox, receipts, garage, firewood"),
    ("meal", "toast, porridge, leftovers, soup, a sandwich, noodles, an omelette, salad, pancakes, curry, \
      a bagel, cereal, pizza, beans, fried rice, scrambled eggs, stew, pasta, yoghurt, a banana"),
    ("drink", "coffee, green tea, cocoa, cider, juice, lemonade, mint tea, espresso, beer, ginger ale"),
    ("programme", "documentary, quiz show, crime series, podcast, comedy, news special, baking contest, \
      nature film, western, opera broadcast, radio play, talk show, match, cartoon, courtroom drama"),
    ("subject", "glaciers, lighthouses, chess, volcanoes, bees, submarines, the Vikings, trams, cathedrals, \
      mushrooms, satellites, forgery, whales, bridges, perfume, spies, owls, silk, comets, canals, dogs, \
      pottery, weddings, marathons, motorbikes, violins, babies, kitchens, landlords, allotments"),
    ("gadget", "printer, phone, router, kettle, boiler, headset, vacuum cleaner, doorbell, lamp, laptop, \
      keyboard, radio, dishwasher, thermostat, blender, remote control, scanner, toaster, alarm clock"),
    ("mood", "tired, fine, cheerful, a bit flat, restless, relaxed, grumpy, hopeful, worn out, calm, busy, \
      proud, nervous, curious, rather pleased, homesick, sleepy, lighter, optimistic"),
    ("spot", "park, market, bakery, library, station, canal, post office, gym, pharmacy, town hall, bank, \
      barber, swimming pool, corner shop, harbour, cinema, hardware store, museum, allotments, car park"),
    ("stranger", "a man, a woman, some tourists, the postman, a cyclist, two students, an old couple, \
      a child, the caretaker, a courier, a busker, a policeman, the people upstairs, a jogger, a nun, \
      a salesman"),
    ("item", "umbrella, scarf, wallet, glove, charger, notebook, key ring, lunch box, rucksack, hat, ticket, \
      water bottle, sunglasses, library book, parcel, balloon, trolley, ladder, pram, suitcase, guitar"),
    ("action", "sang out loud, dropped everything, argued about parking, fed the pigeons, queued for ages, \
      asked for directions, waved at everybody, lost a shoe, slept on a bench, counted coins, laughed at \
      nothing, took photos, missed the bus, whistled, sold raffle tickets, tripped over the kerb"),
    ("topic", "inflation, football, gardening, holidays, phones, diets, school, traffic, elections, recipes, \
      sleep, house prices, trains, family, exercise, old films, horoscopes, insurance, pets, music"),
    ("praise", "lovely, wonderful, impressive, great news, charming, quite something, exciting, brave, \
      encouraging, good to hear, a fine idea, a real achievement, delightful, well deserved"),
    ("pity", "a shame, annoying, tough, unfortunate, unlucky, no fun, stressful, tiring, a nuisance"),
    ("verdict", "brilliant, all right, a waste of time, better than expected, too long, strange, moving, \
      dull, worth it, hilarious, overrated, surprisingly good, exhausting, so-so, beautiful, far too loud"),
    ("shop", "the flea market, a second-hand shop, the shop by the bridge, an auction, a friend of a friend, \
      an online advert, the garden centre, a charity shop, a car boot sale, a workshop that closed down, \
      the department store, a stall at the fair, an antique dealer, a house clearance"),
    ("profession", "retired sailor, pharmacist, tax adviser, roofer, midwife, sculptor, bus driver, judge, \
      botanist, former boxer, tailor, sound engineer, beekeeper, translator, chimney sweep, astronomer, \
      goldsmith, paramedic, piano tuner, vet, optician, carpenter, librarian, forester"),
    ("adjective", "Golden, Quiet, Crooked, Silver, Hidden, Northern, Velvet, Broken, Merry, Blue, Hollow, \
      Iron"),
    ("noun", "Anchor, Lantern, Fox, Compass, Orchid, Anvil, Harp, Kettle, Swan, Barrel, Feather, Mirror, \
      Otter"),
];
